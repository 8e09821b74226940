//! Tables for people.

use std::fmt;

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `part` of `whole`, for example `12.3 %`.
pub fn share(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    format!("{percent:.1} %")
}

/// The text without control characters: a name in a snapshot may hold what moves a cursor.
pub fn plain(text: &str) -> String {
    let replaced = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(replaced).collect()
}

/// Writes rows below their heads: numbers to the right, and the last column, a text, as it is.
pub fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> fmt::Result {
    let mut rows: Vec<[String; N]> = rows.into_iter().collect();
    rows.insert(0, heads.map(str::to_owned));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    for row in &rows {
        for (cell, width) in row[..N - 1].iter().zip(widths) {
            write!(f, "{cell:>width$}  ")?;
        }
        writeln!(f, "{}", plain(&row[N - 1]))?;
    }
    Ok(())
}
