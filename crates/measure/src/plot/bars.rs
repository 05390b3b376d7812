//! Bar plots: horizontal bars with names on the left and figures on the right.

use super::axis;
use super::scale::AxisScale;
use super::svg::{Svg, TextAnchor};
use crate::shown;
use crate::stats::RunStatistics;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 6.0;
const ROW: f64 = 24.0;

/// Role of a bar in its plot, which decides how it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarStyle {
    /// The tool that the plot is about.
    Ours,
    /// Another tool.
    Other,
    /// The capacity of the path, which is no tool's figure.
    Reference,
    /// A run that was ended early.
    Stopped,
}

/// Row of a [`BarPlot`]: a name, a bar and a figure.
#[derive(Debug, Clone)]
pub struct BarRow {
    /// Text on the left.
    pub label: String,
    /// Length of the bar, with whiskers from minimum to maximum; `None` for a row without a bar.
    pub value: Option<RunStatistics>,
    /// Text on the right; empty for the median.
    pub note: String,
    /// The look.
    pub fill: BarStyle,
}

/// Plot of horizontal bars with one scale, drawn as SVG.
#[derive(Debug, Clone)]
pub struct BarPlot {
    /// Text alternative for screen readers.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Rows from top to bottom.
    pub rows: Vec<BarRow>,
}

impl BarPlot {
    /// Draws the plot.
    pub fn draw(&self) -> Svg {
        let bottom = TOP + ROW * self.rows.len() as f64;
        let mut svg = Svg::new(WIDTH, bottom + 36.0, &self.title);
        let values: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| row.value)
            .flat_map(|spread| [spread.min, spread.median, spread.max])
            .collect();
        let scale = AxisScale::fitting(&values, LEFT, RIGHT);
        axis::below(&mut svg, &scale, TOP, bottom, &self.unit);
        for (number, row) in self.rows.iter().enumerate() {
            draw_row(&mut svg, &scale, TOP + ROW * number as f64, row);
        }
        svg.line("axis", (LEFT, TOP), (LEFT, bottom));
        svg
    }
}

fn draw_row(svg: &mut Svg, scale: &AxisScale, top: f64, row: &BarRow) {
    let middle = top + ROW / 2.0;
    let strong = if row.fill == BarStyle::Ours {
        "strong"
    } else {
        ""
    };
    svg.text(
        strong,
        (LEFT - 8.0, middle + 4.0),
        TextAnchor::End,
        &row.label,
    );
    let Some(spread) = row.value else {
        svg.text(
            "small",
            (LEFT + 8.0, middle + 4.0),
            TextAnchor::Start,
            &row.note,
        );
        return;
    };
    let class = match row.fill {
        BarStyle::Ours => "ours",
        BarStyle::Other => "other",
        BarStyle::Reference => "reference",
        BarStyle::Stopped => "stopped",
    };
    let end = scale.at(spread.median);
    svg.rect(class, (LEFT, top + 4.0), (end - LEFT).max(1.0), ROW - 8.0);
    let (least, most) = (scale.at(spread.min), scale.at(spread.max));
    if most - least > 1.5 {
        svg.line("whisker", (least, middle), (most, middle));
        for x in [least, most] {
            svg.line("whisker", (x, middle - 4.0), (x, middle + 4.0));
        }
    }
    let note = if row.note.is_empty() {
        shown::number(spread.median)
    } else {
        row.note.clone()
    };
    // A long note would not fit on the right, so it starts at the left of a gap.
    let beside = most.max(end) + 7.0;
    svg.text(strong, (beside, middle + 4.0), TextAnchor::Start, &note);
}
