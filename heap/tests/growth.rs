//! `diff`: what has grown between two snapshots, and what holds it.

#![cfg(not(any(loom, miri)))]

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Made, ask, file, place, real, run, tell};

mod common;

/// A registry with a list, and a cache.
fn base() -> (Made, [usize; 3]) {
    let mut made = Made::new();
    let registry = made.object("Registry", 3, 100);
    let list = made.object("List", 5, 10);
    let cache = made.object("Cache", 7, 10);
    made.edge(0, "app", registry);
    made.edge(registry, "list", list);
    made.edge(registry, "cache", cache);
    let gone = made.object("Session", 9, 20);
    made.edge(list, "0", gone);
    (made, [registry, list, cache])
}

/// The same some time later: the session is gone, but 50 others with 50 carts are there, and a blob
/// that the cache and the list hold. A temporary object is garbage.
fn later() -> Made {
    let (_, [registry, list, cache]) = base();
    let mut made = Made::new();
    made.object("Registry", 3, 100);
    made.object("List", 5, 10);
    made.object("Cache", 7, 10);
    made.edge(0, "app", registry);
    made.edge(registry, "list", list);
    made.edge(registry, "cache", cache);
    for number in 0..50 {
        let session = made.object("Session", 1_001 + 4 * number, 20);
        let cart = made.object("Cart", 1_003 + 4 * number, 100);
        made.edge(list, &number.to_string(), session);
        made.edge(session, "cart", cart);
        made.edge(cart, "owner", session);
    }
    let blob = made.object("Blob", 2_001, 5_000);
    made.edge(list, "blob", blob);
    made.edge(cache, "blob", blob);
    let small = made.object("Small", 2_003, 1);
    made.edge(0, "small", small);
    made.object("Temporary", 2_005, 7);
    made
}

fn field<'a>(rows: &'a Value, key: &str) -> Vec<&'a Value> {
    rows.as_array().unwrap().iter().map(|row| &row[key]).collect()
}

#[test]
fn a_difference_names_classes_and_the_references_that_hold_them() {
    let (before, after) = (base().0.write("before"), later().write("after"));
    let diff = ask(&[&"diff", &before, &after]);
    let classes = ["Blob", "Cart", "Session", "Temporary", "Small"];
    assert_eq!(field(&diff["classes"], "class"), classes, "{diff}");
    let session = &diff["classes"][2];
    assert_eq!((&session["new_objects"], &session["gone_objects"]), (&json!(50), &json!(1)));
    assert_eq!((&session["before"], &session["after"]), (&json!([1, 20]), &json!([50, 1_000])));
    assert_eq!((&diff["new_objects"], &diff["new_bytes"]), (&json!(103), &json!(11_008)));
    assert_eq!(diff["held_bytes"], 11_001, "not the temporary one");
    // The list leads to all that, and alone retains the sessions. The cache adds nothing.
    let holds = &diff["holds"];
    assert_eq!(field(holds, "class"), ["Session", "Blob"]);
    assert_eq!(field(holds, "retained_bytes"), [6_000, 0]);
    assert_eq!(field(holds, "covered_bytes"), [6_000, 11_000]);
    assert_eq!(field(holds, "references"), [50, 1]);
    assert_eq!(holds[0]["holder"]["class"], "List");
    assert_eq!((&holds[0]["field"], &holds[1]["field"]), (&Value::Null, &json!(".blob")));
    let text = tell(&[&"diff", &before, &after]);
    assert!(text.contains("List @5 [...] -> 50 x Session"), "{text}");
    assert!(text.contains("103 objects with 11,008 bytes are new"), "{text}");
}

#[test]
fn the_share_decides_how_many_references_are_listed() {
    let (before, after) = (base().0.write("share-before"), later().write("share-after"));
    let holds = |share: &str| ask(&[&"diff", &before, &after, &"--share", &share])["holds"].clone();
    assert_eq!(holds("54").as_array().unwrap().len(), 1);
    assert_eq!(holds("55").as_array().unwrap().len(), 2);
    let all = holds("100");
    assert_eq!(all[2]["holder"]["class"], "(root)");
    assert_eq!((&all[2]["field"], &all[2]["covered_bytes"]), (&json!(".small"), &json!(11_001)));
    let one = ask(&[&"diff", &before, &after, &"--share=100", &"--most=1"]);
    let counts = ["classes", "holds"].map(|list| one[list].as_array().unwrap().len());
    assert_eq!((counts, &one["omitted"]), ([1, 1], &json!(7)));
}

#[test]
fn an_id_of_another_class_is_another_object() {
    let mut reused = Made::new();
    let object = reused.object("Other", 3, 100);
    reused.edge(0, "app", object);
    let (before, after) = (base().0.write("reused-before"), reused.write("reused-after"));
    let diff = ask(&[&"diff", &before, &after]);
    assert_eq!((&diff["new_objects"], &diff["holds"][0]["class"]), (&json!(1), &json!("Other")));
    assert_eq!(diff["classes"][4]["class"], "Registry", "the largest loss comes last: {diff}");
}

#[test]
fn a_class_whose_old_objects_have_grown_is_listed() {
    let with_buffer = |bytes: u64| {
        let mut made = base().0;
        let buffer = made.node("native", "outside the heap", 11, bytes);
        made.edge(1, "outside the heap", buffer);
        made
    };
    let small = with_buffer(10).write("in-place-small");
    let large = with_buffer(1_000_000).write("in-place-large");
    for (before, after, sizes) in
        [(&small, &large, [10, 1_000_000]), (&large, &small, [1_000_000, 10])]
    {
        let diff = ask(&[&"diff", before, after]);
        let [buffers] = &diff["classes"].as_array().unwrap()[..] else { panic!("{diff}") };
        assert_eq!(buffers["class"], "outside the heap");
        let [was, is] = sizes.map(|bytes| json!([1, bytes]));
        assert_eq!((&buffers["before"], &buffers["after"]), (&was, &is));
        assert_eq!((&diff["new_objects"], &diff["holds"]), (&json!(0), &json!([])));
    }
}

#[test]
fn an_object_that_is_referred_to_twice_counts_once() {
    let mut made = base().0;
    let (shared, other) = (made.object("Blob", 11, 100), made.object("Blob", 13, 50));
    for (holder, field, blob) in
        [(2, "a", shared), (2, "b", shared), (3, "a", shared), (3, "b", other)]
    {
        made.edge(holder, field, blob);
    }
    let diff = ask(&[&"diff", &base().0.write("once-before"), &made.write("once-after")]);
    let [hold] = &diff["holds"].as_array().unwrap()[..] else { panic!("{diff}") };
    // The cache leads to both, the list only to one.
    assert_eq!((&hold["holder"]["class"], &hold["covered_bytes"]), (&json!("Cache"), &json!(150)));
}

#[test]
fn equal_snapshots_have_no_difference() {
    for heap in [base().0.write("same"), real("sympy")] {
        let diff = ask(&[&"diff", &heap, &heap]);
        let lists = (&diff["classes"], &diff["holds"], &diff["new_bytes"]);
        assert_eq!(lists, (&json!([]), &json!([]), &json!(0)));
    }
}

#[test]
fn snapshots_of_two_processes_are_refused() {
    let text = std::fs::read_to_string(base().0.write("process")).unwrap();
    let of = |name: &str, process: &str| {
        let member = format!("\"process\":{process},\"node_count\"");
        file(name, text.replace("\"node_count\"", &member).as_bytes())
    };
    let [one, other] = [of("process-1", "\"1-7\""), of("process-2", "\"1-8\"")];
    let error = |before: &PathBuf, after: &PathBuf| {
        let output = run(&["diff".as_ref(), before.as_os_str(), after.as_os_str()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let refusal = error(&one, &other);
    let start = format!("{}: of process 1-8, but {} is of", other.display(), one.display());
    assert!(refusal.starts_with(&start) && refusal.lines().count() == 1, "{refusal}");
    // A small copy is of the same process, and a file of V8 tells none.
    let small = place("process-small");
    ask(&[&"fold", &one, &"-o", &small]);
    assert_eq!(ask(&[&"diff", &one, &small])["new_objects"], 0);
    assert!(error(&small, &other).contains("of process 1-8"));
    let untold = base().0.write("process-untold");
    assert_eq!(ask(&[&"diff", &untold, &other])["new_objects"], 0);
    let number = error(&untold, &of("process-number", "7"));
    assert!(number.contains("invalid type: integer `7`, expected a string"), "{number}");
}

#[test]
fn a_snapshot_without_ids_is_refused() {
    let with = std::fs::read_to_string(base().0.write("ids")).unwrap();
    let without = file("no-ids", with.replace("\"id\"", "\"number\"").as_bytes());
    let with = file("with-ids", with.as_bytes());
    for pair in [[&with, &without], [&without, &with]] {
        let output = run(&["diff".as_ref(), pair[0].as_os_str(), pair[1].as_os_str()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with(&format!("{}: no object has an id", without.display())));
    }
}
