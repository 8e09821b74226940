//! The report in HTML: what stands in it, and, with a browser, what it shows.

#![cfg(not(any(loom, miri)))]

use std::path::{Path, PathBuf};
use std::process::Command;

use standstill_heap::pauses::nearest_rank;

use crate::common::{Made, file, place, real, run};

mod common;

/// The page about a snapshot, with or without a log.
#[track_caller]
fn report(heap: &Path, log: Option<&Path>, name: &str) -> (PathBuf, String) {
    let page = place(name);
    let mut arguments = vec!["report".as_ref(), heap.as_os_str(), "-o".as_ref(), page.as_os_str()];
    if let Some(log) = log {
        arguments.extend(["--log".as_ref(), log.as_os_str()]);
    }
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    (page, text)
}

const EVIL: &str =
    "</title></svg><script>document.title='owned'</script><img src=x onerror=x()>'\"&";

/// Names that are HTML, in each place where the page has names.
fn hostile() -> PathBuf {
    let mut made = Made::new();
    let holder = made.object(EVIL, 3, 100);
    let text = made.node("string", EVIL, 5, 1_000);
    made.edge(0, EVIL, holder);
    made.edge(holder, EVIL, text);
    made.write("hostile")
}

fn log() -> PathBuf {
    let line = |kind: &str, stops: &str| {
        format!("{{\"event\":\"collection\",\"kind\":\"{kind}\",\"stops_us\":{stops},\"new\":1}}\n")
    };
    let mut text = line("full", "[12345,40]");
    text.extend((1..=99).map(|at| line("young", &format!("[{at}]"))));
    text += "{\"event\":\"promotion\",\"objects\":7,\"stopped_us\":3000000}\n";
    let evil = serde_json::json!(EVIL);
    text += &format!("{{\"event\":\"slow\",\"text\":{evil}}}\n");
    text += &format!(
        "{{\"event\":\"slow\",\"kind\":{evil},\"waited_us\":1500,\"thread\":{evil},\"text\":\"late\"}}\n"
    );
    text += "{\"event\":\"collection\",\"ki";
    file("log", text.as_bytes())
}

#[test]
fn a_page_has_figures_rectangles_classes_suspects_and_pauses() {
    let (_, page) = report(&real("django"), Some(&log()), "django.html");
    for part in [
        "<title>django.heapsnapshot.zst</title>",
        "173,870 objects, 26.9 MB",
        "list @205407 retains 6,710,456 bytes, 24.9 %",
        "<li>200 x Template, 6.7 MB",
        "<code>[1416]</code> list @205407",
        "<td>6.7 MB<td>9.6 kB<td>200<td>Template",
        "<td>2<td>40 µs<td>12.3 ms<td>12.3 ms<td>12.4 ms<td>",
        "<td>99<td>50 µs<td>99 µs<td>99 µs<td>5.0 ms<td>",
        "<td>1<td>3.00 s<td>3.00 s<td>3.00 s<td>3.00 s<td>",
        "2 reports; the last 2",
        "<title>slow wait</title>",
        ", 1.5 ms, because of thread &lt;",
        "<li>late",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    let rectangles = page.matches("<rect ").count();
    assert!((300..5_000).contains(&rectangles), "{rectangles} rectangles");
    assert!(!page.contains("NaN") && !page.contains("inf"), "no number");
    let quiet = report(&real("sympy"), None, "quiet.html").1;
    assert!(!quiet.contains("Pauses"));
    assert_eq!(quiet, report(&real("sympy"), None, "again.html").1, "the same page each time");
}

#[test]
fn a_percentile_is_the_nearest_rank() {
    for (count, median, high) in [(1, 1, 1), (2, 1, 2), (100, 50, 99), (101, 51, 100)] {
        let times: Vec<u64> = (1..=count).collect();
        assert_eq!(nearest_rank(&times, 50), median, "of {count}");
        assert_eq!(nearest_rank(&times, 99), high, "of {count}");
        assert_eq!((nearest_rank(&times, 0), nearest_rank(&times, 100)), (1, count));
    }
}

#[test]
fn a_log_without_pauses_shows_its_slow_waits() {
    let log = file("stuck", b"{\"event\":\"slow\",\"kind\":\"slow stop\",\"text\":\"stuck\"}\n");
    let page = report(&Made::new().write("stuck-heap"), Some(&log), "stuck.html").1;
    assert!(page.contains("The log has none") && page.contains("<li>stuck"), "{page}");
}

#[test]
fn names_are_text() {
    let (_, page) = report(&hostile(), Some(&log()), "hostile.html");
    assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
    let safe = "&lt;/title&gt;&lt;/svg&gt;&lt;script&gt;document.title=&#39;owned&#39;";
    assert!(page.matches(safe).count() > 6, "{page}");
}

#[test]
fn the_areas_of_a_treemap_are_the_retained_bytes() {
    let mut made = Made::new();
    for (number, size) in [600, 300, 100].into_iter().enumerate() {
        let object = made.object(&format!("Part{number}"), 3 + number as u64, size);
        made.edge(0, &number.to_string(), object);
    }
    let (_, page) = report(&made.write("areas"), None, "areas.html");
    let number = |text: &str, name: &str| -> f64 {
        let rest = &text[text.find(&format!("{name}=\"")).unwrap() + name.len() + 2..];
        rest[..rest.find('"').unwrap()].parse().unwrap()
    };
    for (number_of, part) in [(0, 0.6), (1, 0.3), (2, 0.1)] {
        let from = page.find(&format!("<title>Part{number_of} ")).unwrap();
        let area = number(&page[from..], "width") * number(&page[from..], "height");
        assert!((area / (1_160.0 * 620.0) - part).abs() < 0.001, "{number_of}: {area}");
    }
}

#[test]
fn a_heap_without_bytes_and_a_deep_one_have_pages() {
    let mut made = Made::new();
    let mut last = 0;
    for id in 1..3_000 {
        let next = made.object("Link", 2 * id, u64::from(id == 2_999));
        made.edge(last, "next", next);
        last = next;
    }
    let (_, page) = report(&made.write("deep"), None, "deep.html");
    assert!(page.contains("and 2976 more objects") && page.len() < 20_000, "{page}");
    let (_, page) = report(&Made::new().write("empty"), None, "empty.html");
    assert!(page.contains("Nothing retains 10 %"), "{page}");
}

#[test]
fn a_bad_log_is_refused_with_its_line() {
    let heap = hostile();
    let longest = [&[b' '; 1 << 20][..], b"\n"].concat();
    for (name, text, reason) in [
        ("words", b"{\"event\":\"slow\"}\nnot JSON\n".as_slice(), "line 2: expected"),
        ("event", b"{\"evint\":\"slow\"}\n".as_slice(), "line 1: missing field `event`"),
        ("negative", b"{\"event\":\"promotion\",\"stopped_us\":-1}\n", "line 1: invalid value"),
        ("long", &longest, "line 1: longer than 1048576 bytes"),
    ] {
        let log = file(name, text);
        let page = place("never.html");
        let arguments = ["report".as_ref(), heap.as_os_str(), "--log".as_ref(), log.as_os_str()];
        let output = run(&[&arguments[..], &["-o".as_ref(), page.as_os_str()]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(reason) && error.lines().count() == 1, "{name}: {error}");
        assert!(!page.exists());
    }
    let folder = place("no-such-folder/page.html");
    let arguments = ["report".as_ref(), heap.as_os_str(), "-o".as_ref(), folder.as_os_str()];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains(": write: "));
}

/// What a headless Chromium makes of the pages.
#[test]
#[ignore = "needs Chromium: ci/heap.sh"]
fn a_browser_shows_the_pages_without_an_error() {
    for (heap, name) in [(real("django"), "shown.html"), (hostile(), "shown-hostile.html")] {
        let (page, _) = report(&heap, Some(&log()), name);
        let profile = place("profile");
        let output = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
            ])
            .args(["--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=2000"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        std::fs::remove_dir_all(&profile).unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !log.contains("CONSOLE"), "{log}");
        // The browser's own parser has seen the elements, and no others.
        let shown = String::from_utf8_lossy(&output.stdout);
        let count = |tag: &str| shown.matches(&format!("<{tag}")).count();
        assert_eq!((count("svg"), count("script"), count("img")), (2, 0, 0), "{shown}");
        assert!(count("rect ") > 100 && count("article>") > 0 && count("td>") > 20, "{shown}");
        assert!(
            shown.trim_end().ends_with("</html>") && !shown.contains("<title>owned"),
            "{shown}"
        );
    }
}
