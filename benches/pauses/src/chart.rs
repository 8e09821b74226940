//! Charts as SVG files: [`lines`] and horizontal [`bars`]. The text is text: a viewer brings the
//! fonts.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::stats::Spread;
use crate::table::number;

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

/// Draws `series` as lines with points. The x axis is logarithmic, and a linear y axis begins at 0.
///
/// # Errors
///
/// When the file cannot be written.
pub fn lines(
    path: &Path,
    title: &str,
    x_label: &str,
    y: Axis<'_>,
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = extremes(points().map(|point| point.0));
    let upwards = extremes(points().map(|point| point.1));
    if y.log {
        lines_on(path, title, x_label, y.label, series, across, upwards.log_scale())
    } else {
        lines_on(path, title, x_label, y.label, series, across, 0.0..upwards.end)
    }
}

fn lines_on<Y>(
    path: &Path,
    title: &str,
    x_label: &str,
    y_label: &str,
    series: &[Series],
    across: Range<f64>,
    upwards: impl AsRangedCoord<Value = f64, CoordDescType = Y>,
) -> Result<(), Box<dyn Error>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let page = SVGBackend::new(path, (WIDTH, 520)).into_drawing_area();
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let area = frame(&page, title, &names)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(across.log_scale(), upwards)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .axis_desc_style(TEXT)
        .label_style(TEXT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, series) in series.iter().enumerate() {
        let points = series.points.iter().copied();
        chart.draw_series(LineSeries::new(points.clone(), color(i).stroke_width(2)))?;
        chart.draw_series(points.map(|point| Circle::new(point, 3, color(i).filled())))?;
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
    pub values: Vec<Option<Spread>>,
}

/// Draws the medians as horizontal bars on a logarithmic axis, in groups, one colour for each of
/// `series`. A line in a bar shows the extremes.
///
/// # Errors
///
/// When the file cannot be written.
pub fn bars(
    path: &Path,
    title: &str,
    label: &str,
    series: &[String],
    groups: &[Group],
) -> Result<(), Box<dyn Error>> {
    const BAR: u32 = 15;
    let values = groups.iter().flat_map(|group| group.values.iter().flatten());
    let mut scale = extremes(values.flat_map(|value| [value.least, value.greatest]));
    scale.start *= 0.8; // the least one is a bar too

    // Rows from the top: the bars of a group that are there, then half a row of space.
    let rows = |group: &Group| group.values.iter().flatten().count().max(1) as f64 + 0.5;
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
        .build_cartesian_2d(scale.clone().log_scale(), height..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_desc(label)
        .x_label_formatter(&|value| number(*value))
        .axis_desc_style(TEXT)
        .label_style(TEXT)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()?;

    let beside = |h: HPos| TEXT.into_text_style(&area).pos(Pos::new(h, VPos::Center));
    let mut top = 0.25;
    for group in groups {
        let middle = top + (rows(group) - 0.5) / 2.0;
        let (x, y) = chart.backend_coord(&(scale.start, middle));
        page.draw(&Text::new(group.name.clone(), (x - 8, y), beside(HPos::Right)))?;
        let values = group.values.iter().enumerate();
        let shown = values.filter_map(|(i, value)| Some((i, (*value)?)));
        for (row, (i, Spread { median, least, greatest })) in shown.enumerate() {
            let y = top + row as f64;
            let bar = [(scale.start, y + 0.08), (median, y + 0.92)];
            chart.draw_series([Rectangle::new(bar, color(i).filled())])?;
            let extremes = vec![(least, y + 0.5), (greatest, y + 0.5)];
            chart.draw_series([PathElement::new(extremes, BLACK)])?;
            let (x, y) = chart.backend_coord(&(greatest, y + 0.5));
            page.draw(&Text::new(number(median), (x + 5, y), beside(HPos::Left)))?;
        }
        top += rows(group);
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

/// The least and the greatest of the values that are above 0, and never an empty range.
fn extremes(values: impl Iterator<Item = f64>) -> Range<f64> {
    let shown = values.filter(|value| value.is_finite() && *value > 0.0);
    let (least, greatest) = shown.fold((f64::INFINITY, 0.0), |(least, greatest), value| {
        (value.min(least), value.max(greatest))
    });
    if least > greatest { 1.0..10.0 } else { least..greatest.max(least * 1.5) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_written() -> Result<(), Box<dyn Error>> {
        let folder = std::env::temp_dir().join(format!("pauses-chart-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let points = (1..9).map(|i| (10f64.powi(i), f64::from(i))).collect();
        let series = [Series { name: "one <1>".into(), points }];
        let path = folder.join("lines.svg");
        for log in [false, true] {
            lines(&path, "A title & more", "objects", Axis { label: "ns", log }, &series)?;
            let text = std::fs::read_to_string(&path)?;
            assert!(text.contains("&lt;1&gt;") && text.contains("\n1000\n"), "{text}");
        }
        lines(&folder.join("empty.svg"), "empty", "x", Axis { label: "y", log: true }, &[])?;

        let value = |median| Spread { median, least: median * 0.9, greatest: median };
        let groups = [
            Group { name: "tree, 1 worker".into(), values: vec![Some(value(3.0)), None] },
            Group { name: "list".into(), values: vec![None, None] },
        ];
        let path = folder.join("bars.svg");
        bars(&path, "Bars", "ns", &["a".into(), "b".into()], &groups)?;
        assert!(std::fs::read_to_string(&path)?.contains("tree, 1 worker"));
        Ok(std::fs::remove_dir_all(folder)?)
    }
}
