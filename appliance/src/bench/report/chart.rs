//! Charts as SVG. Colours are classes, so that the page's style sheet sets them for light, dark
//! and paper; sizes fit a phone, and a wide page shows the same larger.

use super::axis::{Axis, drawable};
use maud::{Markup, html};

/// Units across; one is about a pixel on a phone.
const WIDTH: f64 = 360.0;
/// Units of a digit above a column, in the two sizes that there are, also in a wide font.
const DIGIT: [f64; 2] = [7.4, 6.1];
/// Characters that fit above a row.
const ROW_CHARS: usize = 52;
/// Units of a line of text.
const LINE: f64 = 14.0;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) value: f64,
    /// The quarters; where there are none, both are the value.
    pub(super) low: f64,
    pub(super) high: f64,
    /// What the machine allows.
    pub(super) limit: Option<f64>,
}

impl Value {
    /// `None` for what is not a measurement.
    pub(super) fn new(value: Option<f64>, quarters: [f64; 2], limit: Option<f64>) -> Option<Self> {
        let value = value.filter(|&v| drawable(v))?;
        let [low, high] = if quarters.iter().all(|&q| drawable(q)) { quarters } else { [value; 2] };
        Some(Self { value, low, high, limit: limit.filter(|&l| drawable(l)) })
    }

    /// A value without quarters and limit.
    pub(super) fn plain(value: Option<f64>) -> Option<Self> {
        let value = value?;
        Self::new(Some(value), [value; 2], None)
    }

    fn top(&self) -> f64 {
        self.value.max(self.high).max(self.limit.unwrap_or(0.0))
    }

    fn describe(&self, unit: &str) -> String {
        let mut text = format!("{} {unit}", short(self.value));
        if self.low < self.high {
            text += &format!(", quarters {} - {}", short(self.low), short(self.high));
        }
        if let Some(limit) = self.limit {
            text += &format!(", limit {}", short(limit));
        }
        text
    }
}

/// A number for people, with about three digits.
pub(super) fn short(value: f64) -> String {
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The same with no digit after the point where that is a tenth at most: for narrow columns.
fn shorter(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn px(units: f64) -> String {
    format!("{units:.1}")
}

/// The frame of every chart.
fn svg(height: f64, name: &str, content: &Markup) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height:.0}")) role="img" aria-label=(name) {
            (content)
        }
    }
}

/// Columns in groups: one for each series that has a value there.
pub(super) struct Columns {
    pub(super) name: String,
    /// What the columns are.
    pub(super) unit: &'static str,
    /// What the groups are.
    pub(super) across: &'static str,
    pub(super) groups: Vec<String>,
    /// For each series, its values: one for each group.
    pub(super) series: Vec<Vec<Option<Value>>>,
}

impl Columns {
    pub(super) fn draw(&self) -> Markup {
        let (left, right, top, bottom) = (33.0, WIDTH - 3.0, 34.0, 200.0);
        let values = || self.series.iter().flatten().flatten();
        let axis = Axis::new(values().map(Value::top));
        let y = |value: f64| bottom - axis.at(value) * (bottom - top);
        let group = (right - left) / self.groups.len().max(1) as f64;
        let all = self.series.len().max(1) as f64;
        let column = (group * 0.92 / all).min(44.0);
        // Values have one size, in which all of them fit, or none.
        let digits = values().map(|v| shorter(v.value).chars().count()).max().unwrap_or(0);
        let fits = |digit: f64| digit * digits as f64 <= column;
        let class = match DIGIT.map(fits) {
            [true, _] => Some("value"),
            [_, true] => Some("value narrow"),
            _ => None,
        };
        // One limit for all is one line.
        let first = values().next().and_then(|v| v.limit);
        let common = first.filter(|_| values().all(|v| v.limit == first));
        let content = html! {
            text.unit x="0" y="14" { (self.unit) }
            @for (value, text) in axis.ticks() {
                line.grid x1=(px(left)) x2=(px(right)) y1=(px(y(value))) y2=(px(y(value))) {}
                text.tick x=(px(left - 5.0)) y=(px(y(value) + 3.5)) text-anchor="end" { (text) }
            }
            @if let Some(limit) = common {
                line.limit x1=(px(left)) x2=(px(right)) y1=(px(y(limit))) y2=(px(y(limit))) {}
            }
            @for (g, name) in self.groups.iter().enumerate() {
                @let middle = left + group * (g as f64 + 0.5);
                @let here: Vec<_> = self.series.iter().enumerate()
                    .filter_map(|(s, values)| Some((s, (*values.get(g)?)?))).collect();
                @let start = middle - column * here.len() as f64 / 2.0;
                @for (place, (s, value)) in here.iter().enumerate() {
                    @let x = start + column * place as f64;
                    g {
                        title { (name) ": " (value.describe(self.unit)) }
                        (one_column((x, column), *s, value, y, common.is_none(), class))
                    }
                }
                text.group x=(px(middle)) y=(px(bottom + 16.0)) text-anchor="middle" { (name) }
            }
            text.unit x=(px((left + right) / 2.0)) y=(px(bottom + 33.0)) text-anchor="middle" {
                (self.across)
            }
        };
        svg(bottom + 40.0, &self.name, &content)
    }
}

/// One column with its quarters, its limit where that is its own, and its value as text.
fn one_column(
    (x, width): (f64, f64),
    series: usize,
    value: &Value,
    y: impl Fn(f64) -> f64,
    own_limit: bool,
    class: Option<&str>,
) -> Markup {
    let gap = (width * 0.1).min(2.0);
    let number = shorter(value.value);
    let middle = x + width / 2.0;
    let limit = value.limit.map(&y);
    // The text stands on whatever is highest, but goes over the limit only where it must.
    let mut text = y(value.value.max(value.high)) - 4.0;
    if let Some(limit) = limit.filter(|&l| l > text - 12.0 && l < text + 5.0) {
        text = limit - 4.0;
    }
    html! {
        rect class=(format!("c{series}")) x=(px(x + gap)) width=(px(width - 2.0 * gap))
            y=(px(y(value.value))) height=(px(y(0.0) - y(value.value))) rx="1.5" {}
        @if value.low < value.high {
            (quarters((middle, y(value.low)), (middle, y(value.high)), (width / 4.0).min(5.0)))
        }
        @if let Some(limit) = limit.filter(|_| own_limit) {
            line.limit x1=(px(x)) x2=(px(x + width)) y1=(px(limit)) y2=(px(limit)) {}
        }
        @if let Some(class) = class {
            text class=(class) x=(px(middle)) y=(px(text)) text-anchor="middle" { (number) }
        }
    }
}

/// An error bar with its ends.
fn quarters((x1, y1): (f64, f64), (x2, y2): (f64, f64), end: f64) -> Markup {
    let (dx, dy) = if (x1 - x2).abs() < f64::EPSILON { (end, 0.0) } else { (0.0, end) };
    let line =
        |x: f64, y: f64| format!("M{} {}L{} {}", px(x - dx), px(y - dy), px(x + dx), px(y + dy));
    let d = format!("M{} {}L{} {}{}{}", px(x1), px(y1), px(x2), px(y2), line(x1, y1), line(x2, y2));
    html! { path.quarters d=(d) {} }
}

/// A row of [`bars`].
pub(super) struct Row {
    pub(super) label: String,
    /// What else is to be said of it.
    pub(super) note: String,
    /// The bars, with the class of their colour.
    pub(super) bars: Vec<(&'static str, Value)>,
}

impl Row {
    /// The label in lines: it breaks after commas, and the first line leaves room for the note.
    /// What has no room in a second line is cut off.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![String::new()];
        let mut room = ROW_CHARS.saturating_sub(self.note.chars().count() + 2);
        for term in self.label.split_inclusive(", ") {
            let length = |text: &str| text.trim_end().chars().count();
            let last = lines.len() - 1;
            if length(&lines[last]) > 0 && length(&format!("{}{term}", lines[last])) > room {
                lines.push(String::new());
                room = ROW_CHARS;
            }
            if let Some(line) = lines.last_mut() {
                line.push_str(term);
            }
        }
        if let [_, second, _, ..] = lines.as_mut_slice() {
            second.push('…');
        }
        lines.truncate(2);
        for line in &mut lines {
            line.truncate(line.trim_end().len());
            if line.chars().count() > ROW_CHARS {
                *line = line.chars().take(ROW_CHARS - 1).chain(['…']).collect();
            }
        }
        lines
    }

    /// Units that the lines take.
    fn heading(&self) -> f64 {
        LINE * self.lines().len() as f64
    }
}

/// Rows of bars from left to right, with room for long labels.
pub(super) fn bars(name: &str, unit: &str, rows: &[Row]) -> Markup {
    let (left, right) = (2.0, WIDTH - 54.0);
    let values = || rows.iter().flat_map(|r| r.bars.iter().map(|(_, value)| value));
    let axis = Axis::new(values().map(Value::top));
    let x = |value: f64| left + axis.at(value) * (right - left);
    let bar = |row: &Row| if row.bars.len() > 1 { 12.0 } else { 16.0 };
    let height = |row: &Row| 16.0 + row.heading() + bar(row) * row.bars.len() as f64;
    let end: f64 = rows.iter().map(height).sum();
    let mut y = 0.0;
    let content = html! {
        (vertical_axis(axis, x, end, unit))
        @for row in rows {
            @let top = y + 6.0 + row.heading();
            (heading(row, y))
            @for (i, (class, value)) in row.bars.iter().enumerate() {
                @let (top, height) = (top + bar(row) * i as f64, bar(row) - 2.0);
                @let middle = top + height / 2.0;
                g {
                    title { (row.label) ": " (value.describe(unit)) }
                    rect class=(class) x=(px(left)) width=(px(x(value.value) - left)) y=(px(top))
                        height=(px(height)) rx="1.5" {}
                    @if value.low < value.high {
                        (quarters((x(value.low), middle), (x(value.high), middle), height / 3.0))
                    }
                    @if let Some(limit) = value.limit.map(x) {
                        line.limit x1=(px(limit)) x2=(px(limit)) y1=(px(top - 3.0))
                            y2=(px(top + height + 3.0)) {}
                    }
                    text.value x=(px(WIDTH - 2.0)) y=(px(middle + 4.0)) text-anchor="end" {
                        (short(value.value))
                    }
                }
            }
            @let () = y += height(row);
        }
    };
    svg(end + 38.0, name, &content)
}

/// Rows of parts that make up a whole, each part in the colour of its place.
pub(super) fn stacks(name: &str, unit: &str, rows: Vec<(String, Vec<f64>)>) -> Markup {
    let (left, right) = (2.0, WIDTH - 54.0);
    let axis = Axis::new(rows.iter().map(|(_, parts)| parts.iter().sum()));
    let x = |value: f64| left + axis.at(value) * (right - left);
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(label, parts)| (Row { label, note: String::new(), bars: Vec::new() }, parts))
        .collect();
    let height = |row: &Row| 30.0 + row.heading();
    let end: f64 = rows.iter().map(|(row, _)| height(row)).sum();
    let mut y = 0.0;
    let content = html! {
        (vertical_axis(axis, x, end, unit))
        @for (row, parts) in &rows {
            @let top = y + 6.0 + row.heading();
            (heading(row, y))
            @for (p, part) in parts.iter().enumerate() {
                @let from: f64 = parts.iter().take(p).sum();
                @let (from, to) = (x(from), x(from + part));
                g {
                    title { (row.label) ": " (short(*part)) " " (unit) }
                    rect class=(format!("c{p}")) x=(px(from)) width=(px(to - from)) y=(px(top))
                        height="18" {}
                    @if to - from > 24.0 {
                        text class=(format!("on c{p}")) x=(px((from + to) / 2.0))
                            y=(px(top + 13.0)) text-anchor="middle" { (shorter(*part)) }
                    }
                }
            }
            text.value x=(px(WIDTH - 2.0)) y=(px(top + 13.0)) text-anchor="end" {
                (short(parts.iter().sum()))
            }
            @let () = y += height(row);
        }
    };
    svg(end + 38.0, name, &content)
}

/// Grid and numbers of an axis below the rows.
fn vertical_axis(axis: Axis, x: impl Fn(f64) -> f64, end: f64, unit: &str) -> Markup {
    html! {
        @for (value, text) in axis.ticks() {
            line.grid x1=(px(x(value))) x2=(px(x(value))) y1="0" y2=(px(end + 4.0)) {}
            @let anchor = if value > 0.0 { "middle" } else { "start" };
            text.tick x=(px(x(value))) y=(px(end + 17.0)) text-anchor=(anchor) { (text) }
        }
        text.unit x="2" y=(px(end + 33.0)) { (unit) }
    }
}

/// Label and note of a row that starts at `y`.
fn heading(row: &Row, y: f64) -> Markup {
    html! {
        @for (i, line) in row.lines().iter().enumerate() {
            text.row x="2" y=(px(y + LINE * (i + 1) as f64)) { (line) }
        }
        text.note x=(px(WIDTH - 2.0)) y=(px(y + LINE)) text-anchor="end" { (row.note) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_break_after_commas() {
        let lines = |label: &str, note: &str| {
            Row { label: label.into(), note: note.into(), bars: vec![] }.lines()
        };
        assert_eq!(lines("short", "note"), ["short"]);
        assert_eq!(lines("", "note"), [""]);
        let label = "tcp parameter server, offloads on, cubic, multicast replies";
        assert_eq!(
            lines(label, "0.43 of Gradbox"),
            ["tcp parameter server, offloads on,", "cubic, multicast replies"]
        );
        for (label, note) in [("ä".repeat(500), "n"), ("word, ".repeat(100), &"n".repeat(90))] {
            let lines = lines(&label, note);
            assert!(lines.len() <= 2 && lines.iter().all(|l| l.chars().count() <= ROW_CHARS));
        }
    }
}
