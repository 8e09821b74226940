//! The dominator tree as nested rectangles, each as large as what its object retains.

use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::page::{bytes, escaped};
use crate::snapshot::Class;
use crate::text::{grouped, share};
use crate::tree::Tree;

const WIDTH: f64 = 1160.0;
const HEIGHT: f64 = 620.0;
/// A smaller rectangle is drawn together with others, so their number has a bound.
const LEAST_AREA: f64 = 160.0;
const DEEPEST: usize = 12;
/// The height of a line of text, and the width of a character, about.
const LINE: f64 = 15.0;
const CHARACTER: f64 = 6.4;
/// A child that retains more than this percentage of its parent is drawn in its place.
const SAME: u64 = 90;

/// A rectangle to fill.
#[derive(Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// What a rectangle stands for.
enum Item {
    One(usize),
    Many(Class, usize),
    /// Objects of many classes.
    Rest(usize),
}

/// Draws the tree as an SVG element.
pub(crate) fn draw(out: &mut String, tree: &Tree<'_>) -> fmt::Result {
    write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Treemap of retained bytes\">"
    )?;
    let area = Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
    fill(out, tree, tree.tops(), area, 0)?;
    out.push_str("</svg>\n");
    Ok(())
}

/// Draws `nodes` into `area`.
fn fill(
    out: &mut String,
    tree: &Tree<'_>,
    nodes: Vec<usize>,
    area: Area,
    depth: usize,
) -> fmt::Result {
    let total: u64 = nodes.iter().map(|&node| tree.retained(node)).sum();
    if total == 0 {
        return Ok(());
    }
    let scale = area.width * area.height / total as f64;
    let is_small = |bytes: u64| (bytes as f64) * scale < LEAST_AREA;
    let mut items: Vec<(u64, Item)> = Vec::new();
    let mut small: HashMap<Class, (u64, usize)> = HashMap::new();
    for node in nodes {
        let retained = tree.retained(node);
        if is_small(retained) {
            let sum = small.entry(tree.snapshot.class_of(node)).or_default();
            *sum = (sum.0 + retained, sum.1 + 1);
        } else {
            items.push((retained, Item::One(node)));
        }
    }
    // In the same order in each run.
    let mut small: Vec<_> = small.into_iter().collect();
    small.sort_by_key(|(class, _)| *class);
    let (mut rest, mut count) = (0, 0);
    for (class, (retained, objects)) in small {
        if is_small(retained) {
            (rest, count) = (rest + retained, count + objects);
        } else {
            items.push((retained, Item::Many(class, objects)));
        }
    }
    items.push((rest, Item::Rest(count)));
    items.retain(|item| item.0 > 0);
    items.sort_by_key(|(retained, item)| {
        let number = match item {
            Item::One(node) => *node,
            Item::Many(_, objects) | Item::Rest(objects) => *objects,
        };
        (std::cmp::Reverse(*retained), number)
    });
    squarify(&items, area, scale, &mut |retained, item, area| {
        rectangle(out, tree, retained, item, area, depth)
    })
}

/// Divides `area` into rows of rectangles that are as square as possible: a row takes items as long
/// as its worst ratio of sides improves.
fn squarify(
    mut items: &[(u64, Item)],
    mut area: Area,
    scale: f64,
    draw: &mut dyn FnMut(u64, &Item, Area) -> fmt::Result,
) -> fmt::Result {
    while !items.is_empty() {
        let side = area.width.min(area.height);
        if side < 0.01 {
            break; // Rounding has used the area up.
        }
        let worst = |sum: f64, size: f64| {
            let thickness = sum / side;
            let length = size / thickness;
            (length / thickness).max(thickness / length)
        };
        let size = |at: usize| items[at].0 as f64 * scale;
        let (mut count, mut sum) = (1, size(0));
        while count < items.len() {
            let next = sum + size(count);
            let row = |sum| worst(sum, size(0)).max(worst(sum, size(count - 1)));
            if worst(next, size(0)).max(worst(next, size(count))) > row(sum) {
                break;
            }
            (count, sum) = (count + 1, next);
        }
        let thickness = sum / side;
        let mut along = 0.0;
        for (at, (retained, item)) in items[..count].iter().enumerate() {
            let length = size(at) / thickness;
            let part = if area.width >= area.height {
                Area { x: area.x, y: area.y + along, width: thickness, height: length }
            } else {
                Area { x: area.x + along, y: area.y, width: length, height: thickness }
            };
            draw(*retained, item, part)?;
            along += length;
        }
        if area.width >= area.height {
            (area.x, area.width) = (area.x + thickness, (area.width - thickness).max(0.0));
        } else {
            (area.y, area.height) = (area.y + thickness, (area.height - thickness).max(0.0));
        }
        items = &items[count..];
    }
    Ok(())
}

fn rectangle(
    out: &mut String,
    tree: &Tree<'_>,
    retained: u64,
    item: &Item,
    area: Area,
    depth: usize,
) -> fmt::Result {
    let (label, hue, inner) = match *item {
        Item::One(node) => {
            let mut last = node;
            while let Some(child) = tree.children(last).next()
                && tree.retained(child) * 100 > SAME * tree.retained(last)
            {
                last = child;
            }
            let mut label = tree.object(node).to_string();
            if last != node {
                write!(label, " › {}", tree.object(last))?;
            }
            (label, Some(hue(&tree.object(last).class)), tree.children(last).collect())
        }
        Item::Many(class, objects) => {
            let class = tree.snapshot.class_name(class);
            (format!("{} x {class}", grouped(objects as u64)), Some(hue(&class)), Vec::new())
        }
        Item::Rest(objects) => (format!("{} others", grouped(objects as u64)), None, Vec::new()),
    };
    let Area { x, y, width, height } = area;
    let fill =
        hue.map_or("#e4e4e4".to_owned(), |hue| format!("hsl({hue} 45% {}%)", 90 - 3 * depth));
    let part = share(retained, tree.total());
    write!(
        out,
        "<g><title>{}\n{}, {part}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
         height=\"{height:.1}\" fill=\"{fill}\"/>",
        escaped(&label),
        bytes(retained)
    )?;
    let shown = ((width - 8.0) / CHARACTER).max(0.0) as usize;
    let has_label = height > LINE + 3.0 && shown > 3;
    if has_label {
        let full = format!("{label}  {}", bytes(retained));
        let text: String = if full.chars().count() > shown {
            label.chars().take(shown - 1).chain(['…']).collect()
        } else {
            full
        };
        write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 4.0, y + 13.0, escaped(&text))?;
    }
    let top = if has_label { LINE + 3.0 } else { 3.0 };
    let inside = Area { x: x + 3.0, y: y + top, width: width - 6.0, height: height - top - 3.0 };
    if depth < DEEPEST && inside.width > 12.0 && inside.height > 12.0 {
        // What the object takes itself stays free.
        let below: u64 = inner.iter().map(|&node| tree.retained(node)).sum();
        let part = below as f64 / retained.max(1) as f64;
        self::fill(out, tree, inner, Area { height: inside.height * part, ..inside }, depth + 1)?;
    }
    out.push_str("</g>");
    Ok(())
}

/// The hue of a class in degrees, the same in each report.
fn hue(class: &str) -> u32 {
    let mix = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    class.bytes().fold(0x811c_9dc5, mix) % 360
}
