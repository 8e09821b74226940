//! The answers about small heaps, of which each figure is known, and about those of real programs.

#![cfg(not(any(loom, miri)))]

use serde_json::{Value, json};

use crate::common::{Made, ask, file, real, run, tell};

mod common;

/// A registry holds two sessions that share a cart; a cache holds a big string, which is also held
/// weakly. A ring is unreachable.
fn shop() -> Made {
    let mut made = Made::new();
    let registry = made.object("Registry", 3, 100);
    let sessions = [5, 7].map(|id| made.object("Session", id, 10));
    let cart = made.object("Cart", 9, 1_000);
    let roots = made.node("synthetic", "(GC roots)", 11, 0);
    let cache = made.object("Cache", 13, 50);
    let text = made.node("string", "Lorem ipsum", 15, 5_000);
    let ring = [17, 19].map(|id| made.object("Ring", id, 7));
    made.edge(0, "app", registry);
    made.edge(0, "1", roots);
    made.edge(registry, "sessions", sessions[0]);
    made.edge(registry, "", text);
    made.edge(registry, "1", sessions[1]);
    made.edge(sessions[0], "cart", cart);
    made.edge(sessions[1], "cart", cart);
    made.edge(roots, "0", cache);
    made.edge(cache, "text", text);
    made.edge(ring[0], "next", ring[1]);
    made.edge(ring[1], "next", ring[0]);
    made
}

#[test]
fn a_summary_has_all_sums() {
    let file = shop().write("summary");
    let summary = ask(&[&"summary", &file]);
    let figures = ["nodes", "edges", "weak_edges", "bytes", "reachable_nodes", "reachable_bytes"];
    assert_eq!(figures.map(|name| summary[name].as_u64().unwrap()), [10, 11, 1, 6_184, 8, 6_170]);
    assert_eq!((&summary["classes"], &summary["held"]), (&json!(7), &json!(2)));
    let ids = |of: &Value| -> Vec<u64> {
        of.as_array().unwrap().iter().map(|it| it["id"].as_u64().unwrap()).collect()
    };
    // The root of the collector is no object: what it holds is one.
    assert_eq!(ids(&summary["largest"]), [13, 3]);
    assert!(tell(&[&"summary", &file]).contains("6,184  bytes"));
}

#[test]
fn a_census_counts_what_lies_below_its_own_class_once() {
    let mut made = shop();
    let inner = made.object("Cache", 21, 1);
    made.edge(6, "inner", inner);
    let file = made.write("census");
    let classes = ask(&[&"census", &file])["classes"].clone();
    let row = |name: &str| classes.as_array().unwrap().iter().find(|row| row["class"] == name);
    let figures = |name: &str| {
        let row = row(name).unwrap_or_else(|| panic!("no {name}: {classes}"));
        ["objects", "bytes", "retained_bytes"].map(|field| row[field].as_u64().unwrap())
    };
    assert_eq!(figures("Cache"), [2, 51, 5_051]);
    assert_eq!(figures("Session"), [2, 20, 20], "the cart is held by both");
    assert_eq!(figures("(string)"), [1, 5_000, 5_000]);
    assert_eq!(figures("Ring"), [2, 14, 0], "nothing holds it");
    let short = tell(&[&"census", &file, &"--most", &"2"]);
    assert_eq!(short.lines().count(), 4, "{short}");
    assert!(short.ends_with("and 5 more classes\n"), "{short}");
}

/// The fields that only standstill writes.
#[test]
fn references_from_outside_and_old_objects_are_counted_if_the_file_tells_them() {
    let text = r#"{"snapshot":{"meta":{
        "node_fields":["type","name","id","self_size","edge_count","outside","old"],
        "node_types":[["object"],"string","number","number","number","number","number"],
        "edge_fields":["type","name_or_index","to_node"],
        "edge_types":[["property"],"string_or_number","node"]},"node_count":3,"edge_count":2},
        "nodes":[0,0,1,0,1,0,0, 0,1,3,8,1,2,1, 0,1,5,8,0,4294967295,0],
        "edges":[0,2,7, 0,2,14],"strings":["","Item","next"],
        "trailer":{"nodes":3,"edges":2,"strings":3}}"#;
    let path = file("facts", text.as_bytes());
    let summary = ask(&[&"summary", &path]);
    let outside = 4_294_967_297u64;
    assert_eq!((&summary["old"], &summary["outside"]), (&json!(1), &json!(outside)));
    let item = &ask(&[&"census", &path])["classes"][0];
    assert_eq!((&item["old"], &item["outside"]), (&json!(1), &json!(outside)));
    assert!(tell(&[&"census", &path]).contains("4,294,967,297  Item"));
    // Files of V8 do not tell them.
    assert_eq!(ask(&[&"summary", &shop().write("no-facts")])["old"], Value::Null);
    for (from, to, reason) in [
        ("8,1,2,1,", "8,1,2,2,", "old of node 1 is 2, out of range"),
        ("4294967295", "4294967296", "outside of node 2 is 4294967296, out of range"),
        ("\"old\"", "\"outside\"", "\"outside\" 2 times"),
    ] {
        let bad = file("bad-facts", text.replace(from, to).as_bytes());
        let output = run(&["summary".as_ref(), bad.as_os_str()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn dominators_list_what_an_object_retains() {
    let file = shop().write("dominators");
    let of = ask(&[&"dominators", &file, &"@3"]);
    assert_eq!(of["of"]["retained_bytes"], 1_120);
    let pairs: Vec<_> = of["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| (object["id"].as_u64().unwrap(), object["retained_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(pairs, [(9, 1_000), (5, 10), (7, 10)]);
    let all = ask(&[&"dominators", &file, &"--most", &"1"]);
    assert_eq!((&all["objects"][0]["id"], &all["omitted"]), (&json!(13), &json!(1)));
}

#[test]
fn a_path_names_the_fields_and_avoids_weak_edges() {
    let file = shop().write("path");
    let text = tell(&[&"path", &file, &"15"]);
    let expected = "  root\n  [1] -> (GC roots) @11\n  [0] -> Cache @13\n  \
                    .text -> (string) \"Lorem ipsum\" @15\n";
    assert_eq!(text, expected);
    let steps = ask(&[&"path", &file, &"Session"])["steps"].clone();
    assert_eq!(steps.as_array().unwrap().len(), 3);
    assert_eq!((&steps[1]["field"], &steps[2]["class"]), (&json!(".app"), &json!("Session")));
}

#[test]
fn names_of_classes_are_kept_and_long_ones_show_their_cut() {
    let generic = format!("app::Table<{}", "é".repeat(100));
    let classes = ["A>", "B>"].map(|end| format!("{generic}{end}"));
    let (whole, long) = ("x".repeat(4_000), "y".repeat(4_001));
    let mut made = Made::new();
    let names = [&classes[0], &classes[1], &whole, &long];
    for (name, id) in names.into_iter().zip((3..).step_by(2)) {
        let object = made.object(name, id, 1);
        made.edge(0, name, object);
    }
    for (kind, length, id) in [("string", 80, 21), ("string", 81, 23)] {
        let node = made.node(kind, &"z".repeat(length), id, 1);
        made.edge(0, "text", node);
    }
    // A class that is also the text of a string, in both orders.
    made.node("string", &classes[0], 25, 1);
    made.node("string", &"w".repeat(90), 27, 1);
    made.object(&"w".repeat(90), 29, 1);
    let file = made.write("long-names");
    let id = |class: &str| ask(&[&"path", &file, &class])["steps"][1]["id"].clone();
    assert_eq!([&classes[0], &classes[1], &whole].map(|class| id(class)), [3, 5, 7]);
    assert_eq!(id(&format!("{}…", "y".repeat(4_000))), 9);
    assert_eq!(ask(&[&"dominators", &file, &"w".repeat(90)])["of"]["id"], 29);
    let text = |id: &str| tell(&[&"path", &file, &id]);
    assert!(text("21").contains(&format!("\"{}\"", "z".repeat(80))), "{}", text("21"));
    assert!(text("23").contains(&format!("\"{}…\"", "z".repeat(80))), "{}", text("23"));
}

#[test]
fn an_object_that_is_not_there_or_not_held_is_status_1() {
    let file = shop().write("absent");
    let path = file.as_os_str();
    for (object, reason) in [
        ("4", "there is no object \"4\""),
        ("Nobody", "there is no object \"Nobody\""),
        ("99999999999999999999", "there is no object"),
        ("Ring", "nothing holds Ring @"),
        ("Sess", "there is no object \"Sess\"; classes with this in their name: Session\n"),
        ("a", "in their name: Cart, Cache\n"),
        ("Cart::", "there is no object \"Cart::\"\n"),
    ] {
        let output = run(&["path".as_ref(), path, object.as_ref()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{object}: {error}");
        assert!(error.contains(reason) && error.lines().count() == 1, "{object}: {error}");
    }
}

#[test]
fn the_end_of_a_path_names_its_class_if_it_is_the_only_one() {
    let mut made = Made::new();
    let names = ["app::Session", "app::User", "admin::User", "Us", "app::Map<app::Session>"];
    for (at, name) in (0..).zip(names) {
        let object = made.object(name, 3 + 2 * at, 10 + at);
        made.edge(0, name, object);
    }
    for at in 0..6 {
        made.object(&format!("Part{at}"), 101 + 2 * at, at);
    }
    let file = made.write("ends");
    assert_eq!(ask(&[&"path", &file, &"Session"])["steps"][1]["id"], 3);
    assert_eq!(ask(&[&"dominators", &file, &"Us"])["of"]["id"], 9, "its whole name");
    for (object, names) in
        [("User", ": admin::User, app::User\n"), ("Part", ": Part5, Part4, Part3, Part2, Part1\n")]
    {
        let output = run(&["path".as_ref(), file.as_os_str(), object.as_ref()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{object}: {error}");
        assert!(error.ends_with(names), "{object}: {error}");
    }
}

/// A registry with a list of 3,000 nodes, each of which has a text.
fn long_list() -> Made {
    let mut made = Made::new();
    let mut last = made.object("Registry", 3, 100);
    made.edge(0, "app", last);
    for number in 0..3_000 {
        let next = made.object("Node", 5 + 4 * number, 10);
        let text = made.node("string", "text", 7 + 4 * number, 5);
        made.edge(last, if number == 0 { "first" } else { "next" }, next);
        made.edge(next, "text", text);
        last = next;
    }
    made
}

#[test]
fn a_long_list_is_one_line_with_its_holder() {
    let file = long_list().write("list");
    let answer = ask(&[&"suspects", &file]);
    let [suspect] = &answer["suspects"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(
        suspect["list"],
        json!({"class": "Node", "objects": 3_000, "retained_bytes": 45_000, "field": ".first"})
    );
    assert_eq!(suspect["accumulation_point"]["class"], "Registry");
    assert_eq!(suspect["path"]["steps"].as_array().unwrap().len(), 3);
    let text = tell(&[&"suspects", &file]);
    let line = "  piles up in a list of 3,000 x Node, retained 45,000 bytes, \
                held by Registry @3.first\n";
    assert!(text.contains(line) && text.lines().count() == 6, "{text}");
}

/// A list that only the root holds, and what is no list although its objects are of one class.
#[test]
fn a_list_is_long_and_keeps_its_memory_in_its_own_objects() {
    let chain = |objects: u64, heavy: Option<u64>| {
        let mut made = Made::new();
        let mut last = 0;
        for number in 0..objects {
            let next = made.object("Node", 3 + 2 * number, 10);
            made.edge(last, "next", next);
            if Some(number) == heavy {
                let page = made.object("Page", 1_001, 10);
                made.edge(next, "page", page);
                for number in 0..100 {
                    let word = made.object("Word", 2_001 + 2 * number, 100);
                    made.edge(page, &number.to_string(), word);
                }
            }
            last = next;
        }
        let answer = ask(&[&"suspects", &made.write("chain")]);
        answer["suspects"][0].clone()
    };
    let list = chain(10, None);
    assert_eq!((&list["list"]["objects"], &list["list"]["field"]), (&json!(10), &json!(".next")));
    assert_eq!(list["accumulation_point"]["class"], "(root)");
    assert_eq!(chain(9, None)["list"], Value::Null);
    for heavy in [0, 7, 19] {
        let page = chain(20, Some(heavy));
        assert_eq!(page["list"], Value::Null, "{page}");
        assert_eq!(page["accumulation_point"]["class"], "Page", "{page}");
    }
}

/// A log holds 90 of 100 entries; of the rest, each entry is held on its own.
#[test]
fn suspects_are_objects_and_classes_with_their_accumulation_points() {
    let mut made = Made::new();
    let holder = made.object("Holder", 3, 1);
    let inner = made.object("Inner", 5, 1);
    let list = made.object("List", 7, 8);
    made.edge(0, "holder", holder);
    made.edge(holder, "inner", inner);
    made.edge(inner, "list", list);
    for number in 0..100 {
        let entry = made.object("Entry", 100 + number, 10);
        made.edge(if number < 60 { list } else { 0 }, &number.to_string(), entry);
    }
    let file = made.write("suspects");
    let answer = ask(&[&"suspects", &file]);
    let suspects = answer["suspects"].as_array().unwrap();
    assert_eq!(suspects.len(), 2, "{answer}");
    let [first, second] = [&suspects[0], &suspects[1]];
    assert_eq!((&first["class"], &first["retained_bytes"]), (&json!("Holder"), &json!(610)));
    assert_eq!(first["accumulation_point"]["class"], "List");
    assert_eq!(first["below"], json!([[60, 600, "Entry"]]));
    assert_eq!(first["path"]["steps"].as_array().unwrap().len(), 4);
    assert_eq!((&second["class"], &second["objects"]), (&json!("Entry"), &json!(40)));
    // At exactly the share, and above it.
    assert_eq!(ask(&[&"suspects", &file, &"--share", &"60"])["suspects"], json!([first]));
    assert_eq!(ask(&[&"suspects", &file, &"--share", &"61"])["suspects"], json!([]));
    let output = run(&["suspects".as_ref(), file.as_os_str(), "--share=0".as_ref()]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_deep_list_needs_no_stack() {
    let mut made = Made::new();
    let mut last = 0;
    for id in 1..3_000 {
        let next = made.object("Link", 2 * id, 1);
        made.edge(last, "next", next);
        last = next;
    }
    let file = made.write("deep");
    let classes = ask(&[&"census", &file])["classes"].clone();
    assert_eq!(
        classes,
        json!([{"class": "Link", "objects": 2_999, "bytes": 2_999,
                                "retained_bytes": 2_999}])
    );
    let path = tell(&[&"path", &file, &"5998"]);
    assert!(path.contains("... 2960 more objects") && path.lines().count() == 41, "{path}");
}

#[test]
fn a_root_alone_is_a_heap() {
    let file = Made::new().write("root");
    assert_eq!(ask(&[&"summary", &file])["reachable_nodes"], 1);
    assert_eq!(ask(&[&"census", &file])["classes"], json!([]));
    assert_eq!(ask(&[&"suspects", &file])["suspects"], json!([]));
    assert_eq!(ask(&[&"dominators", &file])["objects"], json!([]));
    assert_eq!(ask(&[&"path", &file, &"1"])["steps"].as_array().unwrap().len(), 1);
}

#[test]
fn names_move_no_cursor() {
    let mut made = Made::new();
    let object = made.object("\u{1b}[2J\r\nclear", 3, 10);
    made.edge(0, "\u{7}bell", object);
    let file = made.write("escape");
    for command in ["summary", "census", "suspects", "dominators"] {
        let text = tell(&[&command, &file]);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{command}: {text:?}");
    }
    assert!(!tell(&[&"path", &file, &"3"]).contains(['\u{1b}', '\u{7}', '\r']));
}

#[test]
fn real_heaps_have_the_objects_of_their_programs() {
    let django = ask(&[&"suspects", &real("django")]);
    let first = &django["suspects"][0];
    assert_eq!(first["accumulation_point"]["class"], "list");
    assert_eq!(first["below"][0], json!([200, 6_708_800, "Template"]));
    let sympy = ask(&[&"summary", &real("sympy")]);
    assert_eq!((&sympy["nodes"], &sympy["edges"]), (&json!(83_442), &json!(227_554)));
}

/// Node's heap, which only a full run reads.
#[test]
fn the_heap_of_the_typescript_compiler_has_its_program_as_suspect() {
    if std::env::var_os("STANDSTILL_FULL").is_none_or(|full| full != "1") {
        return;
    }
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/heaps/typescript.heapsnapshot.zst");
    let answer = ask(&[&"suspects", &file]);
    let first = &answer["suspects"][0];
    assert_eq!(first["accumulation_point"]["class"], "system / Context");
    assert_eq!(first["below"][0][2], "NodeObject");
}

/// A reader that leaves early is no error.
#[test]
fn a_closed_pipe_is_no_error() {
    let file = real("sympy");
    let script = "\"$0\" dominators \"$1\" --most 80000 | head -n 1; exit ${PIPESTATUS[0]}";
    let output = std::process::Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_standstill-heap")])
        .arg(file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{output:?}");
}
