//! Static plots as SVG: a scale, axes, bars and lines. They have no scripts or external parts, and
//! colour is never the only distinction: bars have names, lines have dashes and marks.

mod axis;
mod bars;
mod lines;
mod scale;
mod svg;

pub use bars::{BarPlot, BarRow, BarStyle};
pub use lines::{LinePlot, PlotLine};
pub use scale::{AxisScale, ticks};
pub use svg::{Svg, TextAnchor};
