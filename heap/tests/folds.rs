//! A folded snapshot keeps dominators and retained sizes, and all sums.

#![cfg(not(any(loom, miri)))]

use std::collections::HashMap;
use std::path::Path;

use indicatif::ProgressBar;
use serde_json::json;
use standstill_heap::file::read;
use standstill_heap::fold::Fold;
use standstill_heap::snapshot::Snapshot;
use standstill_heap::tree::Tree;

use crate::common::{Made, ask, file, place, real, run};
use crate::random::Random;

mod common;
#[path = "../../tests/common/random.rs"]
mod random;

fn snapshot(path: &Path) -> Snapshot {
    read(path, &ProgressBar::hidden()).unwrap_or_else(|bad| panic!("{bad}"))
}

/// Folds a snapshot, and reads the result.
fn folded(tree: &Tree<'_>, most: usize, name: &str) -> Snapshot {
    let fold = Fold::of(tree, most);
    let mut bytes = Vec::new();
    fold.write(&mut bytes).unwrap();
    let folded = snapshot(&file(name, &bytes));
    let left = fold.folded();
    assert_eq!(folded.nodes().len(), left.kept + left.sums);
    assert_eq!(tree.snapshot.nodes().len(), left.kept + left.summed_up);
    folded
}

/// Compares the objects that both have, and the sums.
#[track_caller]
fn assert_folded(before: &Tree<'_>, after: &Tree<'_>, context: &str) {
    let size = |tree: &Tree<'_>| tree.snapshot.nodes().iter().map(|node| node.size).sum::<u64>();
    assert_eq!((size(before), before.total()), (size(after), after.total()), "{context}");
    let ids = |tree: &Tree<'_>| -> HashMap<u64, usize> {
        (0..tree.snapshot.nodes().len()).map(|node| (tree.snapshot.id_of(node), node)).collect()
    };
    let (old, new) = (ids(before), ids(after));
    let above = |tree: &Tree<'_>, node| tree.dominator(node).map(|it| tree.snapshot.id_of(it));
    for (id, &node) in &new {
        let Some(&was) = old.get(id) else {
            let name = after.snapshot.name_of(node);
            assert!(name.contains(" x "), "{context}: {name}");
            continue;
        };
        assert_eq!(after.retained(node), before.retained(was), "{context}, id {id}");
        assert_eq!(above(after, node), above(before, was), "{context}, id {id}");
        assert_eq!(after.snapshot.name_of(node), before.snapshot.name_of(was), "{context}");
    }
}

#[test]
fn random_heaps_keep_dominators_and_sums() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut made = Made::new();
        let count = 1 + random.below(60);
        for id in 0..count as u64 {
            let (class, size) = (["A", "B", "C"][random.below(3)], random.below(50) as u64);
            made.object(class, 3 + 2 * id, size);
        }
        for _ in 0..random.below(3 * count) {
            let field = ["next", "3", ""][random.below(3)];
            made.edge(random.below(count + 1), field, random.below(count + 1));
        }
        let original = snapshot(&made.write("random"));
        let tree = Tree::of(&original);
        for most in [3, 4, 5, 10, 20, count.max(3), count + 3] {
            let folded = folded(&tree, most, "random-folded");
            let context = format!("seed {seed}, {most} nodes");
            assert!(folded.nodes().len() <= most, "{context}");
            assert_folded(&tree, &Tree::of(&folded), &context);
        }
    }
}

#[test]
fn a_heap_that_fits_stays_as_it_is() {
    let mut made = Made::new();
    let object = made.object("Only", 3, 10);
    made.edge(0, "it", object);
    made.edge(object, "", object);
    let path = made.write("fits");
    let original = snapshot(&path);
    let small = folded(&Tree::of(&original), 3, "fits-folded");
    assert_eq!((small.nodes().len(), small.edge_count()), (2, 2));
    assert!(small.edges_of(1).next().unwrap().is_weak());
    let arguments = ["fold".as_ref(), path.as_os_str(), "--nodes=2".as_ref(), "-o".as_ref()];
    let output = run(&[&arguments[..], &[place("never").as_os_str()]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn small_classes_are_summed_up_together() {
    let mut made = Made::new();
    for number in 0..40 {
        let object = made.object(&format!("Class{number}"), 3 + number, 10 + number);
        if number % 2 == 0 {
            made.edge(0, "it", object);
        }
    }
    let original = snapshot(&made.write("classes"));
    let tree = Tree::of(&original);
    let small = folded(&tree, 5, "classes-folded");
    assert_folded(&tree, &Tree::of(&small), "classes");
    let mut names: Vec<&str> = (1..small.nodes().len()).map(|node| small.name_of(node)).collect();
    names.sort_unstable();
    assert_eq!(names, ["1 x Class38", "1 x Class39", "19 x others", "19 x others"]);
    let text = std::fs::read_to_string(place("classes-folded")).unwrap();
    assert!(!text.contains("\"it\"") && !text.contains("\"Class0\""), "no use has them: {text}");
}

#[test]
fn a_real_heap_is_folded_by_the_command() {
    let (path, out) = (real("django"), place("django.heapsnapshot"));
    let answer = ask(&[&"fold", &path, &"-o", &out, &"--nodes", &"2000"]);
    let nodes = answer["kept"].as_u64().unwrap() + answer["sums"].as_u64().unwrap();
    assert!((1_900..=2_000).contains(&nodes), "{answer}");
    let (before, after) = (snapshot(&path), snapshot(&out));
    assert_folded(&Tree::of(&before), &Tree::of(&after), "django");
    let figures = ["bytes", "reachable_bytes"];
    let [before, after] = [path, out].map(|path| {
        let summary = ask(&[&"summary", &path]);
        (figures.map(|figure| summary[figure].clone()), summary["largest"][0].clone())
    });
    assert_eq!(before, after);
    assert_eq!(before.1["retained_bytes"], json!(6_710_456));
}

#[test]
fn a_heap_without_labels_and_ids_can_be_folded() {
    let text = r#"{"snapshot":{"edge_count":2,"node_count":3,"meta":{
        "edge_types":["node",["context"]],"edge_fields":["to_node","type"],
        "node_types":["number","number",["a"],"string"],
        "node_fields":["edge_count","self_size","type","name"]}},
        "nodes":[1,0,0,0, 1,64,0,0, 0,32,0,0],"edges":[4,0, 8,0],"strings":["a\"\u0007b"]}"#;
    let original = snapshot(&file("bare", text.as_bytes()));
    assert_eq!(original.field(original.edges_of(0).next().unwrap()), "[0]");
    let tree = Tree::of(&original);
    let small = folded(&tree, 3, "bare-folded");
    assert_folded(&tree, &Tree::of(&small), "bare");
    assert_eq!(small.name_of(2), "a\"\u{7}b");
}
