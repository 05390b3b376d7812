//! Builds an SVG picture.

use std::fmt::Write as _;

use crate::html::escaped;

/// The position of a text relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAnchor {
    /// The text begins at the point.
    Start,
    /// The text is centered on the point.
    Middle,
    /// The text ends at the point.
    End,
}

/// An SVG picture; coordinates are pixels from the top left.
#[derive(Debug, Clone)]
pub struct Svg {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

impl Svg {
    /// Creates an empty picture. The title is its text alternative for screen readers.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            width,
            height,
            title: title.to_owned(),
            body: String::new(),
        }
    }

    /// Adds a straight line; `class` is its style (see [`Self::STYLE`]).
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (short(from.0), short(from.1), short(to.0), short(to.1));
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        );
    }

    /// Adds a rectangle; `class` is its style.
    pub fn rect(&mut self, class: &str, at: (f64, f64), width: f64, height: f64) {
        let (x, y, width, height) = (short(at.0), short(at.1), short(width), short(height));
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
        );
    }

    /// Adds a text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: TextAnchor, text: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "start",
            TextAnchor::Middle => "middle",
            TextAnchor::End => "end",
        };
        let (x, y) = (short(at.0), short(at.1));
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    /// Adds a line through points, with a dash pattern (empty for none).
    pub fn path(&mut self, class: &str, dash: &str, points: &[(f64, f64)]) {
        let mut data = String::new();
        for (number, (x, y)) in points.iter().enumerate() {
            let step = if number == 0 { 'M' } else { 'L' };
            let _ = write!(data, "{step}{} {}", short(*x), short(*y));
        }
        let _ = write!(
            self.body,
            r#"<path class="{class}" stroke-dasharray="{dash}" d="{data}"/>"#
        );
    }

    /// Adds one of six marks: disc, ring, square, triangle, cross, diamond.
    pub fn mark(&mut self, number: usize, class: &str, at: (f64, f64)) {
        let (x, y) = at;
        let polygon = |points: &[(f64, f64)]| {
            let points: Vec<String> = points
                .iter()
                .map(|(dx, dy)| format!("{},{}", short(x + dx), short(y + dy)))
                .collect();
            format!(
                r#"<polygon class="mark {class}" points="{}"/>"#,
                points.join(" ")
            )
        };
        let (cx, cy) = (short(x), short(y));
        let shape = match number % 6 {
            0 => format!(r#"<circle class="mark {class}" cx="{cx}" cy="{cy}" r="3.2"/>"#),
            1 => format!(r#"<circle class="ring {class}" cx="{cx}" cy="{cy}" r="3"/>"#),
            2 => polygon(&[(-3.0, -3.0), (3.0, -3.0), (3.0, 3.0), (-3.0, 3.0)]),
            3 => polygon(&[(0.0, -3.8), (3.6, 3.0), (-3.6, 3.0)]),
            4 => format!(
                r#"<path class="{class}" d="M{} {}l6 6m0 -6l-6 6"/>"#,
                short(x - 3.0),
                short(y - 3.0)
            ),
            _ => polygon(&[(0.0, -4.0), (4.0, 0.0), (0.0, 4.0), (-4.0, 0.0)]),
        };
        self.body.push_str(&shape);
    }

    /// The styles of the classes, once for all pictures of a page.
    pub const STYLE: &'static str = "\
        svg text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#222}\
        svg .small{font-size:11px;fill:#555}\
        svg .strong{font-weight:600;fill:#111}\
        svg .grid{stroke:#e2e2e2;stroke-width:1}\
        svg .axis{stroke:#777;stroke-width:1}\
        svg .whisker{stroke:#111;stroke-width:1.2}\
        svg .ours{fill:#0b5c8a;stroke:#083f5f}\
        svg .other{fill:#c9ced3;stroke:#5d656c}\
        svg .reference{fill:url(#dots);stroke:#5d656c}\
        svg .stopped{fill:url(#hatch);stroke:#8a6d5d;stroke-dasharray:3 2}\
        svg path{fill:none;stroke-width:1.6;stroke-linejoin:round}\
        svg .c0{stroke:#0b5c8a;stroke-width:2.6}svg .c1{stroke:#b3441c}svg .c2{stroke:#3d7a2a}\
        svg .c3{stroke:#7a4a9c}svg .c4{stroke:#8a6a00}svg .c5{stroke:#444}\
        svg .mark{fill:#fff}svg .mark.c0{fill:#0b5c8a;stroke-width:1}\
        svg .ring{fill:none;stroke-width:1.6}svg .mark:not(.c0){stroke-width:1.4}";

    /// The patterns that [`Self::STYLE`] refers to, once for each document.
    pub const PATTERNS: &'static str = "\
        <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
        patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#fff\"/>\
        <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#b89a86\" stroke-width=\"2\"/></pattern>\
        <pattern id=\"dots\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">\
        <rect width=\"5\" height=\"5\" fill=\"#fff\"/>\
        <circle cx=\"2\" cy=\"2\" r=\"1\" fill=\"#5d656c\"/></pattern></defs>";

    /// The `svg` element, for a page that has [`Self::STYLE`] and [`Self::PATTERNS`].
    pub fn element(&self) -> String {
        let (width, height) = (short(self.width), short(self.height));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"><title>{}</title>{}</svg>"#,
            escaped(&self.title),
            self.body
        )
    }

    /// A self-contained SVG file.
    pub fn document(&self) -> String {
        let element = self.element();
        let (open, rest) = element.split_once("</title>").unwrap_or(("", ""));
        format!(
            "{open}</title><style>{}</style>{}{rest}\n",
            Self::STYLE,
            Self::PATTERNS
        )
    }
}

/// Formats a coordinate, to a tenth of a pixel.
fn short(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    text.strip_suffix(".0")
        .map_or_else(|| text.clone(), str::to_owned)
}
