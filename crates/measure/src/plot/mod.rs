//! Static plots as SVG: a scale, axes, bars and lines. No scripts, nothing from elsewhere, and
//! nothing that only a colour tells: bars carry their names, lines their dashes and marks.

mod axis;
mod bars;
mod lines;
mod scale;
mod svg;

pub use bars::{BarRow, Bars, Fill};
pub use lines::{Line, Lines};
pub use scale::{Scale, ticks};
pub use svg::{Anchor, Svg};
