//! Line plots over time: each line has its own dash pattern and mark, and its name at its end.

use super::axis;
use super::scale::AxisScale;
use super::svg::{Svg, TextAnchor};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 590.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 230.0;
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "5 2", "1 2"];

/// Line of a [`LinePlot`], with points in the units of its borders.
#[derive(Debug, Clone)]
pub struct PlotLine {
    /// Text at the end of the line.
    pub label: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A plot of lines. The first one is the tool that the plot is about.
#[derive(Debug, Clone)]
pub struct LinePlot {
    /// Text alternative for screen readers.
    pub title: String,
    /// Unit of the lower border.
    pub x_unit: String,
    /// Unit of the left border.
    pub y_unit: String,
    /// The lines; their looks follow this order.
    pub lines: Vec<PlotLine>,
}

impl LinePlot {
    /// Draws the plot.
    pub fn draw(&self) -> Svg {
        let mut svg = Svg::new(WIDTH, HEIGHT, &self.title);
        let most = |of: fn(&(f64, f64)) -> f64| {
            let all = self
                .lines
                .iter()
                .flat_map(|line| line.points.iter().map(of));
            all.filter(|v| v.is_finite()).fold(0.0, f64::max)
        };
        let x = AxisScale::linear(most(|point| point.0), LEFT, RIGHT);
        let y = AxisScale::linear(most(|point| point.1), BOTTOM, TOP);
        axis::below(&mut svg, &x, TOP, BOTTOM, &self.x_unit);
        axis::beside(&mut svg, &y, LEFT, RIGHT, &self.y_unit);
        // Draw the first line last, on top of the others.
        for (number, line) in self.lines.iter().enumerate().rev() {
            draw_line(&mut svg, number, &line.points, &x, &y);
        }
        self.legend(&mut svg);
        svg.line("axis", (LEFT, TOP), (LEFT, BOTTOM));
        svg.line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        svg
    }

    fn legend(&self, svg: &mut Svg) {
        for (number, line) in self.lines.iter().enumerate() {
            let y = TOP + 8.0 + 19.0 * number as f64;
            let (class, dash) = look(number);
            svg.path(&class, dash, &[(RIGHT + 14.0, y), (RIGHT + 42.0, y)]);
            svg.mark(number, &class, (RIGHT + 28.0, y));
            let strong = if number == 0 { "strong" } else { "" };
            svg.text(
                strong,
                (RIGHT + 48.0, y + 4.0),
                TextAnchor::Start,
                &line.label,
            );
        }
    }
}

fn draw_line(svg: &mut Svg, number: usize, points: &[(f64, f64)], x: &AxisScale, y: &AxisScale) {
    let (class, dash) = look(number);
    let places: Vec<(f64, f64)> = points.iter().map(|p| (x.at(p.0), y.at(p.1))).collect();
    svg.path(&class, dash, &places);
    // A few marks distinguish crossing lines; one at every point would hide them.
    let every = (places.len() / 4).max(1);
    let marked = places.iter().skip(number % every).step_by(every);
    for place in marked {
        svg.mark(number, &class, *place);
    }
}

fn look(number: usize) -> (String, &'static str) {
    let dash = DASHES.get(number % DASHES.len()).copied().unwrap_or("");
    (format!("c{}", number % 6), dash)
}
