//! Tables in Markdown.

use std::fmt::Write as _;

use crate::stats::Spread;

/// A table; all columns but the first are numbers.
#[derive(Debug)]
pub struct Table(String);

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[&str]) -> Self {
        let rule = columns.iter().enumerate().map(|(i, _)| if i == 0 { "---" } else { "---:" });
        let mut table = Self(String::new());
        table.row(columns.iter().copied());
        table.row(rule);
        table
    }

    /// Adds a row.
    pub fn row<Cell: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = Cell>) {
        for cell in cells {
            let _ = write!(self.0, "| {} ", cell.as_ref());
        }
        self.0.push_str("|\n");
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Three digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !value.is_finite() || size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// `12.3 (11.9..14.0)`: the median and the extremes.
pub fn with_extremes(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |it| {
        format!("{} ({}..{})", number(it.median), number(it.least), number(it.greatest))
    })
}

/// A number that may be missing.
pub fn or_nothing(value: Option<f64>) -> String {
    value.map_or_else(String::new, number)
}

/// `1,000,000`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0.123, 12.34, 123.4].map(number), ["0.12", "12.3", "123"]);
        assert_eq!([0, 999, 1000, 30_000_000].map(grouped), ["0", "999", "1,000", "30,000,000"]);
    }
}
