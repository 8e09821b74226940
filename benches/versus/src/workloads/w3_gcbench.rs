//! W3: GCBench's shape, with parent links, so that every tree is cyclic.
//!
//! Its array of numbers holds no references and is left out.

use std::time::Instant;

use crate::peer::Peer;
use crate::shapes;
use crate::tally::{self, Tally};
use crate::task::{Measured, Task};

use super::{check_all_freed, drain};

pub(super) fn run<P: Peer>(task: &Task) -> Measured {
    let shared = P::shared(task);
    let mut local = P::attach(&shared);
    let max = task.n as u32;
    let begun = Instant::now();

    drop(bottom_up::<P>(&local, max + 2));
    P::safepoint(&mut local);
    let long_lived = P::alloc(&local, Tally::new(0));
    populate::<P>(&local, &long_lived, max);
    for (depth, count) in shapes::gcbench(max) {
        for _ in 0..count {
            let root = P::alloc(&local, Tally::new(0));
            populate::<P>(&local, &root, depth);
            drop(root);
            P::safepoint(&mut local);
        }
        for _ in 0..count {
            drop(bottom_up::<P>(&local, depth));
            P::safepoint(&mut local);
        }
    }
    let wall = begun.elapsed();

    let mut measured = Measured::new(wall, tally::births(), 1);
    let held = shapes::tree_size(max);
    P::collect(&mut local);
    // Asked before counting, which takes the tree apart.
    let alive = tally::alive();
    let found = count::<P>(&local, &long_lived);
    measured.check(found == held, || format!("the long-lived tree has {found} nodes of {held}"));
    measured
        .check(alive >= held as u64, || format!("{alive} nodes were alive, and {held} were held"));
    drop(long_lived);
    drain::<P>(&mut local);
    check_all_freed::<P>(&mut measured);
    measured
}

/// Parents before children.
fn populate<P: Peer>(local: &P::Local<'_>, node: &P::Node, depth: u32) {
    if depth == 0 {
        return;
    }
    for _ in 0..2 {
        let child = P::alloc(local, Tally::new(depth));
        P::link(local, node, &child);
        P::link(local, &child, node);
        populate::<P>(local, &child, depth - 1);
    }
}

/// Children before parents.
fn bottom_up<P: Peer>(local: &P::Local<'_>, depth: u32) -> P::Node {
    if depth == 0 {
        return P::alloc(local, Tally::new(depth));
    }
    let children = [bottom_up::<P>(local, depth - 1), bottom_up::<P>(local, depth - 1)];
    let node = P::alloc(local, Tally::new(depth));
    for child in &children {
        P::link(local, &node, child);
        P::link(local, child, &node);
    }
    node
}

/// Counts the nodes of a tree that `populate` built, by taking its edges away: those to the
/// children, last in, first out. Every handle is used, so a node freed too early is seen.
fn count<P: Peer>(local: &P::Local<'_>, root: &P::Node) -> usize {
    let mut todo = vec![(root.clone(), true)];
    let mut seen = 0;
    while let Some((node, is_root)) = todo.pop() {
        P::read(local, &node);
        seen += 1;
        let mut edges: Vec<P::Node> = std::iter::from_fn(|| P::unlink(local, &node)).collect();
        if !is_root {
            // The first edge of a child of `populate` is the one to its parent.
            edges.pop();
        }
        todo.extend(edges.into_iter().map(|child| (child, false)));
    }
    seen
}
