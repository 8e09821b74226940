//! Files that are no whole snapshot: each is refused in one line, with status 2.

#![cfg(not(any(loom, miri)))]

use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::common::{file, real as heap};

mod common;

/// A small heap, with a field that no reader needs, a ring that the root holds (nodes 1 and 2), a
/// node that only a weak edge leads to (3), and a ring that nothing leads to (4 and 5).
const GOOD: &str = include_str!("good.heapsnapshot");

/// The program refuses `file` in one line that names the file, then `place`, then `reason`.
#[track_caller]
fn assert_refused(file: &Path, place: &str, reason: &str) {
    let output = common::run(&["summary".as_ref(), file.as_os_str(), "--json".as_ref()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{}: {error}", file.display());
    assert!(output.stdout.is_empty());
    assert!(error.ends_with('\n') && error.lines().count() == 1, "not one line: {error}");
    let said = error
        .strip_prefix(&format!("{}: ", file.display()))
        .unwrap_or_else(|| panic!("no file: {error}"));
    let behind = said.strip_prefix(place).unwrap_or_else(|| panic!("not at {place:?}: {error}"));
    assert!(behind.contains(reason), "no {reason:?}: {error}");
}

/// A copy of [`GOOD`] with `from` replaced by `to` is refused.
#[track_caller]
fn assert_edit_refused(name: &str, from: &str, to: &str, place: &str, reason: &str) {
    let bad = GOOD.replacen(from, to, 1);
    assert_ne!(bad, GOOD, "{name}: nothing changed");
    assert_refused(&file(&format!("{name}.heapsnapshot"), bad.as_bytes()), place, reason);
}

#[test]
fn refuses_missing_files_directories_and_empty_files() {
    let missing = Path::new(env!("CARGO_TARGET_TMPDIR")).join("there-is-no-such-file");
    assert_refused(&missing, "open: ", "");
    assert_refused(Path::new(env!("CARGO_TARGET_TMPDIR")), "open: ", "directory");
    assert_refused(&file("empty", b""), "byte 0: ", "empty");
}

#[test]
fn refuses_broken_zstd() {
    let whole = std::fs::read(heap("sympy")).unwrap();
    for length in [5, 9, 40, whole.len() / 2, whole.len() - 1] {
        assert_refused(&file("cut.zst", &whole[..length]), "compressed byte ", "cut: ");
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_refused(&file("flipped.zst", &flipped), "compressed byte ", "checksum");
    let behind = [whole.as_slice(), b"what is this"].concat();
    assert_refused(
        &file("behind.zst", &behind),
        "compressed byte ",
        "neither a zstd frame nor the end",
    );
    // A frame of which the header claims a window of 3.75 TB.
    let window = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xFF, 0x00, 0x00, 0x00];
    assert_refused(
        &file("window.zst", &window),
        "compressed byte 6: ",
        "window of 4123168604160 bytes",
    );
    // 8 MiB of spaces in a few hundred bytes.
    let bomb = compress_to_vec(
        std::io::Read::take(std::io::repeat(b' '), 8 << 20),
        CompressionLevel::Fastest,
    );
    assert!(bomb.len() < 8 << 10);
    assert_refused(&file("bomb.zst", &bomb), "decompressed byte ", "more than 256 times");
}

#[test]
fn refuses_text_that_is_not_the_json_of_a_snapshot() {
    for length in [1, 30, GOOD.len() / 2, GOOD.len() - 3] {
        let cut = file("cut.heapsnapshot", &GOOD.as_bytes()[..length]);
        assert_refused(&cut, "", "cut: ");
    }
    assert_refused(&file("text", b"Dear reader,"), "line 1 column 1: ", "not JSON");
    assert_refused(&file("binary", &[0, 159, 146, 150]), "line 1 column 1: ", "not JSON");
    assert_refused(
        &file("list", b"[]"),
        "line 1 column ",
        "expected the object of a heap snapshot",
    );
    assert_refused(&file("nothing", b"{}"), "end of file: ", "no \"snapshot\"");
    assert_edit_refused(
        "behind",
        "]}\n",
        "]}\nmore",
        "line 21 column 1: ",
        "not JSON: trailing characters",
    );
    assert_edit_refused(
        "string",
        "[0,0,1,0,2,",
        "[0,0,\"a\\nb\",0,2,",
        "nodes[2] at line ",
        "expected a number",
    );
    assert_edit_refused(
        "nodes-object",
        "[0,0,1,0,2,",
        "{\"a\":[0],\"b\":[",
        "nodes at line ",
        "expected an array",
    );
    assert_edit_refused(
        "huge",
        "[0,0,1,",
        "[0,0,1e999,",
        "nodes[2] at line ",
        "not JSON: number out of range",
    );
}

#[test]
fn refuses_a_wrong_meta() {
    assert_edit_refused(
        "no-meta",
        "\"meta\"",
        "\"mata\"",
        "snapshot at line 6",
        "missing field `meta`",
    );
    assert_edit_refused(
        "no-header",
        "\"snapshot\"",
        "\"snapshut\"",
        "nodes at line ",
        "stands before snapshot",
    );
    assert_edit_refused(
        "no-fields",
        "node_fields",
        "node_feelds",
        "snapshot at line 5",
        "missing field `node_fields`",
    );
    let field = |name: &str, from: &str, to: &str, reason: &str| {
        assert_edit_refused(name, from, to, "snapshot at line 6", reason);
    };
    field("no-size", "\"self_size\"", "\"size\"", "meta.node_fields has no \"self_size\"");
    field("no-name", "\"name\"", "\"nom\"", "meta.node_fields has no \"name\"");
    field("two-names", "\"id\"", "\"name\"", "meta.node_fields has \"name\" 2 times");
    field("no-target", "\"to_node\"", "\"to\"", "meta.edge_fields has no \"to_node\"");
    field("no-types", "[\"hidden\",\"object\"]", "\"number\"", "meta.node_types does not list");
    field("no-edge-types", "[[\"element\",\"weak\"],", "[", "meta.edge_types does not list");
    let many = format!("\"node_fields\":[{}", "\"x\",".repeat(300));
    assert_edit_refused(
        "many",
        "\"node_fields\":[",
        &many,
        "snapshot at line 2",
        "more than 256 entries",
    );
}

#[test]
fn refuses_nonsense_counts() {
    let header = |name: &str, from: &str, to: &str, reason: &str| {
        assert_edit_refused(name, from, to, "snapshot at line 6", reason);
    };
    header("negative", "\"node_count\":6", "\"node_count\":-6", "node_count is -6");
    header("fraction", "\"node_count\":6", "\"node_count\":6.5", "node_count is 6.5");
    header("float", "\"node_count\":6", "\"node_count\":1e18", "node_count is 1e18");
    header(
        "quintillion",
        "\"node_count\":6",
        "\"node_count\":1000000000000000000",
        "node_count is 1000000000000000000",
    );
    header("word", "\"edge_count\":6", "\"edge_count\":\"six\"", "expected a number");
    header("no-root", "\"node_count\":6", "\"node_count\":0", "no root");
    let nodes = |name: &str, from: &str, to: &str, reason: &str| {
        assert_edit_refused(name, from, to, "nodes", reason);
    };
    nodes(
        "too-many",
        "\"node_count\":6",
        "\"node_count\":7",
        "6 nodes, but snapshot.node_count claims 7",
    );
    nodes("billion", "\"node_count\":6", "\"node_count\":2000000000", "6 nodes, but");
    nodes("too-few", "\"node_count\":6", "\"node_count\":5", "more nodes than the 5");
    nodes("half", "1,2,11,8,1]", "1,2,11,8]", "ends inside node 5, after 4 of 5 numbers");
    nodes(
        "sum-less",
        "\"edge_count\":6",
        "\"edge_count\":9",
        "sum up to 6, but snapshot.edge_count claims 9",
    );
    nodes(
        "sum-more",
        "\"edge_count\":6",
        "\"edge_count\":5",
        "edge_count of node 5 is 1; with it the nodes have more",
    );
    nodes(
        "own-count",
        "[0,0,1,0,2,",
        "[0,0,1,0,18446744073709551615,",
        "edge_count of node 0 is 18446744073709551615",
    );
    nodes("own-negative", "[0,0,1,0,2,", "[0,0,1,0,-2,", "edge_count of node 0 is -2");
    nodes("size", "[0,0,1,0,2,", "[0,0,1,1e99,2,", "self_size of node 0 is 1e99");
    assert_edit_refused(
        "no-edge",
        ",\n0,0,20]",
        "]",
        "edges at line ",
        "5 edges, but snapshot.edge_count claims 6",
    );
    assert_edit_refused(
        "an-edge",
        "0,0,20]",
        "0,0,20,0,0,0]",
        "edges[18] at line ",
        "more edges than the 6",
    );
    assert_edit_refused("half-edge", "0,0,20]", "0,0]", "edges at line ", "ends inside edge 5");
}

#[test]
fn refuses_an_index_out_of_range() {
    assert_edit_refused(
        "target",
        "1,0,15,",
        "1,0,30,",
        "edges[5] at line ",
        "to_node of edge 1 is 30, out of range",
    );
    assert_edit_refused("between", "1,0,15,", "1,0,16,", "edges[5] at line ", "a multiple of 5");
    assert_edit_refused(
        "minus",
        "1,0,15,",
        "1,0,-5,",
        "edges[5] at line ",
        "to_node of edge 1 is -5",
    );
    assert_edit_refused(
        "edge-type",
        "1,0,15,",
        "2,0,15,",
        "edges[3] at line ",
        "type of edge 1 is 2, out of range",
    );
    assert_edit_refused(
        "node-type",
        "1,1,3,64",
        "2,1,3,64",
        "nodes[5] at line ",
        "type of node 1 is 2, out of range",
    );
    assert_edit_refused(
        "name",
        "1,1,3,64",
        "1,3,3,64",
        "strings at line ",
        "name of node 1 is string 3, but there are 3 strings",
    );
    assert_edit_refused(
        "far-name",
        "1,1,3,64",
        "1,4294967296,3,64",
        "nodes[6] at line ",
        "name of node 1 is 4294967296",
    );
}

#[test]
fn refuses_missing_and_misplaced_sections() {
    assert_edit_refused(
        "no-strings",
        "\"strings\"",
        "\"things\"",
        "end of file: ",
        "no \"strings\"",
    );
    assert_edit_refused(
        "no-edges",
        "\"edges\"",
        "\"hedges\"",
        "strings at line ",
        "stands before edges",
    );
    assert_edit_refused(
        "no-nodes",
        "\"nodes\"",
        "\"knots\"",
        "edges at line",
        "stands before nodes",
    );
    assert_edit_refused("twice", "\"locations\"", "\"edges\"", "edges at line ", "twice");
    assert_edit_refused(
        "number-string",
        "[\"root\"",
        "[7",
        "strings[0] at line ",
        "expected a string",
    );
}

#[test]
fn refuses_labels_and_sums_out_of_range() {
    assert_edit_refused(
        "label",
        "1,0,15,\n0,0,10,",
        "1,9,15,\n0,9,10,",
        "strings at line ",
        "name_or_index of edge 1 is string 9, but there are 3 strings",
    );
    assert_edit_refused(
        "far-label",
        "1,0,15,",
        "1,4294967296,15,",
        "edges[4] at line ",
        "name_or_index of edge 1 is 4294967296",
    );
    assert_edit_refused("id", "1,1,5,64", "1,1,-5,64", "nodes[12] at line ", "id of node 2 is -5");
    // 2^53 - 1 and 64 are too much together.
    assert_edit_refused(
        "sum",
        "[0,0,1,0,2,",
        "[0,0,1,9007199254740991,2,",
        "nodes[8] at line ",
        "self_size of node 1 is 64, out of range (below 1)",
    );
}

#[test]
fn compares_the_trailer_with_the_counts() {
    let with = |trailer: &str| GOOD.replacen("]}\n", &format!("],\"trailer\":{trailer}}}\n"), 1);
    let good = with(r#"{"nodes":6,"edges":6,"strings":3}"#);
    let output = common::run(&["summary".as_ref(), file("trailer", good.as_bytes()).as_os_str()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (trailer, reason) in [
        (r#"{"nodes":7,"edges":6,"strings":3}"#, "claims 7 nodes, but there are 6"),
        (r#"{"nodes":6,"edges":0,"strings":3}"#, "claims 0 edges, but there are 6"),
        (r#"{"nodes":6,"edges":6,"strings":4}"#, "claims 4 strings, but there are 3"),
        (r#"{"nodes":6,"edges":6,"strings":-1}"#, "strings is -1, not a count"),
        (r#"{"nodes":6,"edges":6}"#, "missing field `strings`"),
    ] {
        assert_refused(&file("bad-trailer", with(trailer).as_bytes()), "trailer at line ", reason);
    }
    let twice = good.replacen("\"locations\"", "\"trailer\"", 1);
    assert_refused(&file("early-trailer", twice.as_bytes()), "trailer at ", "before strings");
}
