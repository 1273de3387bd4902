//! Figures as a page for people: one HTML file that needs nothing else, not even a script.
//!
//! * [`page`]: everything around the charts
//! * `tiles`: the headline; `views`: which figures make which chart; `terms`: what tells figures
//!   apart, and their commands
//! * `chart`: drawing, on an `axis`
//!
//! Nothing is shown that no figure says: a tile, a chart or a line without figures is left out.

mod axis;
mod chart;
mod page;
mod terms;
#[cfg(test)]
mod tests;
mod tiles;
mod views;

pub use page::page;
