//! Bars as SVG, by hand: a workload's contestants, a block for each number of threads, on a
//! logarithmic scale.

use std::fmt::Write as _;

use crate::report::Group;
use crate::task::Workload;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 120.0;
const BAR: f64 = 18.0;
const HEAD: f64 = 56.0;

/// The chart of a workload.
pub fn bars(workload: Workload, groups: &[&Group]) -> String {
    let values =
        || groups.iter().flat_map(|group| group.entries.iter().filter_map(|entry| entry.ns));
    let least = values().map(|[_, least, _]| least).fold(f64::INFINITY, f64::min).min(1e9);
    let greatest = values().map(|[.., greatest]| greatest).fold(0.0, f64::max);
    let low = least.max(0.01).log10().floor();
    let high = greatest.max(0.1).log10().ceil().max(low + 1.0);
    let x = |ns: f64| LEFT + (ns.max(0.01).log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT);

    let rows: usize = groups.iter().map(|group| group.entries.len() + 2).sum();
    let height = HEAD + rows as f64 * BAR + 30.0;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(svg, r#"<rect width="100%" height="100%" fill="white"/>"#);
    let title = escape(&format!("{workload:?}: {}", workload.about()));
    let _ = writeln!(svg, r#"<text x="12" y="22" font-size="15">{title}</text>"#);
    let _ = writeln!(
        svg,
        r#"<text x="12" y="40" fill="gray">core ns per {}, median, with the extremes; logarithmic</text>"#,
        workload.unit()
    );
    for power in low as i32..=high as i32 {
        let at = x(10f64.powi(power));
        let _ = writeln!(
            svg,
            r##"<line x1="{at:.1}" y1="{HEAD}" x2="{at:.1}" y2="{:.1}" stroke="#dddddd"/><text x="{at:.1}" y="{:.1}" text-anchor="middle" fill="gray">{}</text>"##,
            height - 24.0,
            height - 10.0,
            10f64.powi(power)
        );
    }

    let mut y = HEAD;
    for group in groups {
        y += BAR;
        let what = match (workload.threads_are_workers(), group.threads) {
            (true, 1) => "worker",
            (true, _) => "workers",
            (false, 1) => "thread",
            (false, _) => "threads",
        };
        let _ = writeln!(
            svg,
            r#"<text x="12" y="{y:.1}" font-weight="bold">{} {what}</text>"#,
            group.threads
        );
        for entry in &group.entries {
            y += BAR;
            let name = escape(&entry.contestant);
            let _ = writeln!(
                svg,
                r#"<text x="{}" y="{y:.1}" text-anchor="end">{name}</text>"#,
                LEFT - 6.0
            );
            let Some([median, least, greatest]) = entry.ns else {
                let note = escape(&entry.notes.join("; "));
                let _ = writeln!(
                    svg,
                    r##"<text x="{}" y="{y:.1}" fill="#b00020">{note}</text>"##,
                    LEFT + 4.0
                );
                continue;
            };
            let color = match (entry.contestant.starts_with("standstill"), entry.rival) {
                (true, _) => "#1b6ca8",
                (_, true) => "#9aa5b1",
                _ => "#d9a441",
            };
            let (from, to) = (x(least), x(greatest));
            let _ = writeln!(
                svg,
                r#"<rect x="{LEFT}" y="{:.1}" width="{:.1}" height="12" fill="{color}"/>"#,
                y - 10.0,
                (x(median) - LEFT).max(1.0)
            );
            let _ = writeln!(
                svg,
                r#"<line x1="{from:.1}" y1="{0:.1}" x2="{to:.1}" y2="{0:.1}" stroke="black"/>"#,
                y - 4.0
            );
            let mark = if entry.notes.is_empty() { "" } else { " *" };
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{y:.1}">{median:.1}{mark}</text>"#,
                to.max(x(median)) + 5.0
            );
        }
        y += BAR;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
