//! Charts as SVG files.
//!
//! Two kinds: [`lines`] and horizontal [`bars`], with linear or logarithmic axes. The text is text:
//! a viewer brings the fonts.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The quantity on an axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Its name, with the unit.
    pub label: &'a str,
    /// Logarithmic?
    pub log: bool,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Draws `series` as lines with points.
///
/// # Errors
///
/// When the file cannot be written.
pub fn lines(
    path: &Path,
    title: &str,
    x: Axis<'_>,
    y: Axis<'_>,
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = Scale::of(points().map(|point| point.0), x.log);
    let upwards = Scale::of(points().map(|point| point.1), y.log);
    let shown = |point: &(f64, f64)| across.shows(point.0) && upwards.shows(point.1);

    let page = SVGBackend::new(path, (WIDTH, 520)).into_drawing_area();
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let area = frame(&page, title, &names)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(across, upwards)?;
    chart
        .configure_mesh()
        .x_desc(x.label)
        .y_desc(y.label)
        .axis_desc_style(TEXT)
        .label_style(TEXT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, series) in series.iter().enumerate() {
        let points: Vec<_> = series.points.iter().copied().filter(shown).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color(i).stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color(i).filled())))?;
    }
    page.present()?;
    Ok(())
}

/// A group of bars: a name, and a value for each of the chart's series.
#[derive(Clone, Debug)]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// One value for each series; none where there is nothing to show.
    pub values: Vec<Option<f64>>,
}

/// Draws horizontal bars, in groups, one colour for each of `series`.
///
/// # Errors
///
/// When the file cannot be written.
pub fn bars(
    path: &Path,
    title: &str,
    value: Axis<'_>,
    series: &[String],
    groups: &[Group],
) -> Result<(), Box<dyn Error>> {
    const BAR: u32 = 15;
    let values = groups.iter().flat_map(|group| group.values.iter().flatten().copied());
    let mut scale = Scale::of(values, value.log);
    if value.log {
        scale.from = round_down(scale.from * 0.9); // the least one is a bar too
    } else {
        scale.from = scale.from.min(0.0); // a bar's length is its value
    }

    // Rows from the top: the bars of a group that are there, then half a row of space.
    let rows = |group: &Group| group.values.iter().flatten().count() as f64 + 0.5;
    let height = groups.iter().map(rows).sum::<f64>().max(1.0);
    let page =
        SVGBackend::new(path, (WIDTH, (height * f64::from(BAR)) as u32 + 110)).into_drawing_area();
    let names: Vec<&str> = series.iter().map(String::as_str).collect();
    let area = frame(&page, title, &names)?;
    let label_width = groups.iter().map(|group| text_width(&group.name)).max().unwrap_or(0) + 10;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(60)
        .x_label_area_size(44)
        .y_label_area_size(label_width)
        .build_cartesian_2d(scale, height..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_desc(value.label)
        .axis_desc_style(TEXT)
        .label_style(TEXT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;

    let beside = |h: HPos| TEXT.into_text_style(&area).pos(Pos::new(h, VPos::Center));
    let mut row = 0.25;
    for group in groups {
        let here = rows(group) - 0.5;
        let (x, y) = chart.backend_coord(&(scale.from, row + here / 2.0));
        page.draw(&Text::new(group.name.clone(), (x - 8, y), beside(HPos::Right)))?;
        for (i, value) in group.values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let end = if scale.shows(value) { value } else { scale.from };
            chart.draw_series([Rectangle::new(
                [(scale.from, row + 0.08), (end, row + 0.92)],
                color(i).filled(),
            )])?;
            let (x, y) = chart.backend_coord(&(end, row + 0.5));
            page.draw(&Text::new(number(value), (x + 5, y), beside(HPos::Left)))?;
            row += 1.0;
        }
        row += 0.5;
    }
    page.present()?;
    Ok(())
}

const WIDTH: u32 = 960;
const TEXT: (&str, i32) = ("sans-serif", 13);
const GRID: RGBColor = RGBColor(224, 224, 224);

/// Colours that most eyes can distinguish (Okabe and Ito), the strongest first.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(205, 190, 20),
];

fn color(series: usize) -> RGBColor {
    COLORS[series % COLORS.len()]
}

/// The approximate width of a text in pixels: the viewer's font is unknown.
fn text_width(text: &str) -> u32 {
    7 * text.chars().count() as u32
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the title, and the legend below it. Returns the rest of the page.
fn frame<'a>(page: &Area<'a>, title: &str, names: &[&str]) -> Result<Area<'a>, Box<dyn Error>> {
    page.fill(&WHITE)?;
    page.draw(&Text::new(title.to_owned(), (14, 12), ("sans-serif", 17)))?;
    let style = TEXT.into_text_style(page).pos(Pos::new(HPos::Left, VPos::Center));
    let (mut x, mut y) = (14, 46);
    for (i, name) in names.iter().enumerate() {
        let width = (text_width(name) + 36) as i32;
        if x + width > WIDTH as i32 && x > 14 {
            (x, y) = (14, y + 18);
        }
        page.draw(&Rectangle::new([(x, y - 4), (x + 12, y + 4)], color(i).filled()))?;
        page.draw(&Text::new((*name).to_owned(), (x + 18, y), style.clone()))?;
        x += width;
    }
    Ok(page.split_vertically(y + 12).1)
}

/// An axis: linear or logarithmic, from one round number to another.
#[derive(Clone, Copy, Debug)]
struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// A scale for all of `values`, except values without a logarithm.
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let shown = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (least, greatest) = shown
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), value| {
                (least.min(value), greatest.max(value))
            });
        if least > greatest {
            return Self { from: 1.0, to: 10.0, log }; // nothing to show
        }
        if log {
            let (from, to) = (round_down(least), round_up(greatest));
            return Self { from, to: if to > from { to } else { from * 2.0 }, log };
        }
        // From zero, unless that would leave half of the chart empty.
        let base = if least > greatest / 2.0 && least < greatest { least } else { least.min(0.0) };
        let step = step(greatest - base, 8);
        let from = (base / step).floor() * step;
        let to = (greatest / step).ceil() * step;
        Self { from, to: if to > from { to } else { from + 1.0 }, log }
    }

    fn shows(&self, value: f64) -> bool {
        let slack = (self.to - self.from) * SLACK;
        (self.from - slack..=self.to + slack).contains(&value)
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        let most = hint.max_num_points().clamp(2, 16);
        let within = |value: &f64| self.shows(*value);
        if !self.log {
            let step = step(self.to - self.from, most.min(10));
            let count = ((self.to - self.from) / step).round() as usize;
            return (0..=count).map(|i| self.from + i as f64 * step).collect();
        }
        let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let decades = |factors: &'static [f64]| {
            (low..=high)
                .flat_map(move |power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
        };
        let fine: Vec<f64> = decades(&[1.0, 2.0, 5.0]).filter(within).collect();
        if fine.len() <= most { fine } else { decades(&[1.0]).filter(within).collect() }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        number(*value)
    }
}

/// Two numbers that differ by less, as a part of themselves, are one.
const SLACK: f64 = 1e-3;

/// The step of 1, 2 or 5 times a power of ten that cuts `length` into about `pieces` at most.
fn step(length: f64, pieces: usize) -> f64 {
    if length > 0.0 { round_up(length / pieces as f64) } else { 1.0 }
}

/// The least number of the form 1, 2 or 5 times a power of ten that is not below `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let large_enough = |it: &f64| *it >= value * (1.0 - SLACK);
    [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(large_enough)
        .unwrap_or(10.0 * power)
}

/// The greatest of that form that is not above `value`.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let small_enough = |it: &f64| *it <= value * (1.0 + SLACK);
    [10.0, 5.0, 2.0].map(|factor| factor * power).into_iter().find(small_enough).unwrap_or(power)
}

/// Three digits, as people write them: `0.42`, `7.5`, `120`, `30k`, `3M`.
fn number(value: f64) -> String {
    let size = value.abs();
    let (scaled, suffix) = match size {
        _ if size >= 0.999_5e9 => (value / 1e9, "G"),
        _ if size >= 0.999_5e6 => (value / 1e6, "M"),
        _ if size >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        0.0 => 0,
        size => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{scaled:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.0421, 7.5, 120.0, 1234.6, 30_000.0, 3e6, 2.5e9, -12.0].map(number);
        assert_eq!(texts, ["0", "0.0421", "7.5", "120", "1235", "30k", "3M", "2.5G", "-12"]);
    }

    #[test]
    fn scales_end_at_round_numbers() {
        let log = Scale::of([3.0, 700.0].into_iter(), true);
        assert_eq!((log.from, log.to), (2.0, 1000.0));
        let linear = Scale::of([0.3, 7.4].into_iter(), false);
        assert_eq!((linear.from, linear.to), (0.0, 8.0));
        assert_eq!(linear.key_points(10), (0..=8).map(f64::from).collect::<Vec<_>>());
        let decades = Scale::of([1e4, 3e7].into_iter(), true);
        assert_eq!((decades.from, decades.to), (1e4, 5e7));
        let nothing = Scale::of([-1.0, f64::NAN].into_iter(), true);
        assert!(nothing.from < nothing.to);
        let equal = Scale::of([0.0, 0.0].into_iter(), false);
        assert!(equal.from < equal.to);
    }

    #[test]
    fn charts_are_written() -> Result<(), Box<dyn Error>> {
        let folder = std::env::temp_dir().join(format!("pauses-chart-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let axis = |label, log| Axis { label, log };
        let series = vec![
            Series {
                name: "one <1>".into(),
                points: (1..9).map(|i| (10f64.powi(i), f64::from(i))).collect(),
            },
            Series { name: "two".into(), points: vec![(20.0, 1.0), (3e6, 4.5), (1e7, 0.0)] },
        ];
        let path = folder.join("lines.svg");
        lines(&path, "A title & more", axis("objects", true), axis("ns", false), &series)?;
        let text = std::fs::read_to_string(&path)?;
        assert!(text.contains("&lt;1&gt;") && text.contains("100M"), "{text}");
        lines(&folder.join("empty.svg"), "empty", axis("x", false), axis("y", true), &[])?;

        let groups = [
            Group { name: "tree, 1 worker".into(), values: vec![Some(3.0), None] },
            Group { name: "list".into(), values: vec![Some(120.0), Some(14.0)] },
        ];
        let path = folder.join("bars.svg");
        bars(&path, "Bars", axis("ns/object", true), &["a".into(), "b".into()], &groups)?;
        assert!(std::fs::read_to_string(&path)?.contains("tree, 1 worker"));
        bars(&folder.join("none.svg"), "none", axis("ns", false), &[], &[])?;
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
