//! `convert`: what the formats of others hold. The numbers of their fields are those of perfetto's
//! `trace.proto` and of pprof's `profile.proto`.

#![cfg(not(any(loom, miri)))]

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::common::{Made, place, real, run};
use crate::protobuf::Message;

mod common;
#[path = "../../tests/common/protobuf.rs"]
mod protobuf;

#[track_caller]
fn converted(heap: &Path, to: &str, name: &str) -> Vec<u8> {
    let out = place(name);
    let arguments = ["convert".as_ref(), heap.as_os_str(), "--to".as_ref(), to.as_ref()];
    let output = run(&[&arguments[..], &["-o".as_ref(), out.as_os_str()]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    std::fs::read(out).unwrap()
}

/// The process's name, and the parts of the graph.
fn trace(bytes: &[u8]) -> (String, Vec<Message>) {
    let packets: Vec<Message> = Message::of(bytes).messages(1).collect();
    for packet in &packets {
        assert_eq!((packet.number(8), packet.number(10)), (1, 1), "timestamp and sequence");
    }
    let process = packets[0].messages(2).next().unwrap().messages(1).next().unwrap();
    assert_eq!(process.number(1), 1);
    (process.text(3), packets[1..].iter().map(|it| it.messages(56).next().unwrap()).collect())
}

#[test]
fn a_trace_has_objects_types_fields_and_roots() {
    let mut made = Made::new();
    let registry = made.object("Registry", 3, 100);
    let session = made.object("Session", 5, 20);
    let other = made.object("Session", 7, 30);
    made.edge(0, "app", registry);
    made.edge(registry, "first", session);
    made.edge(registry, "1", other);
    made.edge(session, "", other);
    made.edge(session, "self", session);
    let heap = made.write("shop.heapsnapshot");
    let (process, parts) = trace(&converted(&heap, "perfetto", "shop.pftrace"));
    assert!(process.ends_with("shop.heapsnapshot"), "{process}");
    let [graph] = &parts[..] else { panic!("{} parts", parts.len()) };
    assert_eq!((graph.number(1), graph.number(5), graph.number(6)), (1, 0, 0));
    let names = |field, text| -> HashMap<u64, String> {
        graph.messages(field).map(|it| (it.number(1), it.text(text))).collect()
    };
    let (fields, types) = (names(4, 2), names(9, 3));
    let objects: Vec<_> = graph
        .messages(2)
        .map(|object| {
            let labels = object.packed(4).into_iter().map(|field| fields[&field].clone());
            let class = types[&object.number(2)].clone();
            let edges: Vec<_> = labels.zip(object.packed(5)).collect();
            (object.number(1), class, object.number(3), edges)
        })
        .collect();
    let named = |name: &str, target: u64| (name.to_owned(), target);
    let registry_edges = vec![named("first", 3), named("[]", 4)];
    assert_eq!(objects[0], (2, "Registry".to_owned(), 100, registry_edges));
    assert_eq!(objects[1], (3, "Session".to_owned(), 20, vec![named("self", 3)]), "no weak one");
    assert_eq!(objects[2], (4, "Session".to_owned(), 30, vec![]));
    let roots: Vec<_> = graph.messages(7).map(|it| (it.packed(1), it.number(2))).collect();
    assert_eq!(roots, [(vec![2], 1)]);
    // The location of each type exists.
    assert_eq!(graph.messages(8).next().unwrap().number(1), 1);
    assert!(graph.messages(9).all(|it| it.number(2) == 1 && it.number(7) == 1));
}

#[test]
fn a_large_trace_has_parts_that_continue_each_other() {
    let (_, parts) = trace(&converted(&real("sympy"), "perfetto", "sympy.pftrace"));
    assert!(parts.len() > 80, "{} parts", parts.len());
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        assert_eq!((part.number(1), part.number(6)), (1, at as u64));
        assert_eq!(part.number(5), u64::from(!is_last));
    }
    let objects: Vec<Message> = parts.iter().flat_map(|part| part.messages(2)).collect();
    assert_eq!(objects.len(), 83_441);
    let references: usize = objects.iter().map(|it| it.packed(5).len()).sum();
    let roots: usize =
        parts.iter().flat_map(|part| part.messages(7)).map(|it| it.packed(1).len()).sum();
    assert_eq!(references + roots, 227_554);
    // No part refers to a name or a type that only a later one has.
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for part in &parts {
        names.extend(part.messages(4).map(|it| it.number(1)));
        types.extend(part.messages(9).map(|it| it.number(1)));
        let known = |list: &[u64], number| list.binary_search(&number).is_ok();
        for object in part.messages(2) {
            assert!(known(&types, object.number(2)));
            assert!(object.packed(4).into_iter().all(|field| known(&names, field)));
        }
    }
}

#[test]
fn roots_are_spread_over_parts() {
    for (count, expected) in [(0, vec![]), (1_000, vec![1_000]), (2_001, vec![1_000, 1_000, 1])] {
        let mut made = Made::new();
        for at in 0..count {
            let object = made.object("Session", 3 + 2 * at, 1);
            made.edge(0, &at.to_string(), object);
        }
        let heap = made.write(&format!("roots-{count}"));
        let (_, parts) = trace(&converted(&heap, "perfetto", "roots.pftrace"));
        let roots: Vec<Vec<u64>> =
            parts.iter().flat_map(|part| part.messages(7)).map(|it| it.packed(1)).collect();
        assert_eq!(roots.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        assert_eq!(roots.concat(), (2..2 + count).collect::<Vec<_>>());
        let continues: Vec<u64> = parts.iter().map(|part| part.number(5)).collect();
        assert!(continues.iter().rev().skip(1).all(|it| *it == 1), "{continues:?}");
        assert_eq!(continues.last(), Some(&0));
    }
}

/// The samples of a profile: the classes, the innermost one first, with objects and bytes.
fn samples(bytes: &[u8]) -> Vec<(Vec<String>, Vec<u64>)> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    let profile = Message::of(&plain);
    let strings: Vec<String> =
        profile.bytes(6).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
    assert_eq!(strings[0], "");
    let string = |number: u64| strings[number as usize].clone();
    let kinds: Vec<_> =
        profile.messages(1).map(|it| (string(it.number(1)), string(it.number(2)))).collect();
    let kind = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(kinds, [kind("objects", "count"), kind("bytes", "bytes")]);
    assert_eq!(string(profile.number(14)), "bytes");
    let functions: HashMap<u64, String> =
        profile.messages(5).map(|it| (it.number(1), string(it.number(2)))).collect();
    let locations: HashMap<u64, String> = profile
        .messages(4)
        .map(|it| (it.number(1), functions[&it.messages(4).next().unwrap().number(1)].clone()))
        .collect();
    let stack = |it: &Message| it.packed(1).iter().map(|at| locations[at].clone()).collect();
    profile.messages(2).map(|it| (stack(&it), it.packed(2))).collect()
}

#[test]
fn a_profile_has_the_dominators_as_stacks() {
    let samples = samples(&converted(&real("django"), "pprof", "django.pb.gz"));
    let sum = |at: usize| samples.iter().map(|(_, values)| values[at]).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (173_869, 26_926_608));
    let template = samples.iter().find(|(stack, _)| *stack == ["Template", "list"]).unwrap();
    assert_eq!(template.1, [200, 9_600]);
    assert!(samples.iter().all(|(stack, _)| stack.windows(2).all(|pair| pair[0] != pair[1])));
}

#[test]
fn a_stack_has_64_frames_at_most() {
    let mut made = Made::new();
    let mut last = 0;
    for at in 0..200 {
        let next = made.object(["Even", "Odd"][at % 2], 3 + 2 * at as u64, 1);
        made.edge(last, "next", next);
        last = next;
    }
    made.object("Garbage", 1_001, 7);
    let samples = samples(&converted(&made.write("deep"), "pprof", "deep.pb.gz"));
    assert_eq!(samples.iter().map(|(stack, _)| stack.len()).max(), Some(64));
    assert_eq!(samples.iter().map(|(_, values)| values[0]).sum::<u64>(), 200);
    assert_eq!(samples.iter().map(|(_, values)| values[0]).max(), Some(137));
}
