//! Draws grid lines with values.

use super::scale::AxisScale;
use super::svg::{Svg, TextAnchor};
use crate::shown;

/// Draws values along the lower border, with lines up to `top`.
pub(super) fn below(svg: &mut Svg, scale: &AxisScale, top: f64, bottom: f64, unit: &str) {
    for (value, label) in scale.marks() {
        let x = scale.at(value);
        svg.line("grid", (x, top), (x, bottom));
        if label {
            svg.text(
                "small",
                (x, bottom + 15.0),
                TextAnchor::Middle,
                &round(value),
            );
        }
    }
    let log = if scale.is_log() { ", logarithmic" } else { "" };
    let middle = f64::midpoint(scale.at(0.0), scale.at(f64::MAX));
    svg.text(
        "small",
        (middle, bottom + 30.0),
        TextAnchor::Middle,
        &format!("{unit}{log}"),
    );
}

/// Draws values along the left border, with lines up to `right`.
pub(super) fn beside(svg: &mut Svg, scale: &AxisScale, left: f64, right: f64, unit: &str) {
    for (value, label) in scale.marks() {
        let y = scale.at(value);
        svg.line("grid", (left, y), (right, y));
        if label {
            svg.text(
                "small",
                (left - 6.0, y + 4.0),
                TextAnchor::End,
                &round(value),
            );
        }
    }
    let log = if scale.is_log() { ", logarithmic" } else { "" };
    let top = scale.at(f64::MAX);
    svg.text(
        "small",
        (left - 6.0, top - 9.0),
        TextAnchor::Start,
        &format!("{unit}{log}"),
    );
}

/// Formats a value of an axis without trailing zeros.
fn round(value: f64) -> String {
    if value >= 10_000.0 {
        return shown::count(value.round() as u64);
    }
    let text = shown::number(value);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}
