//! Writes a file anew with all its mutants in it, each behind a switch.
//!
//! A change is made of insertions and replaced operators only, so changes nest to any depth and no
//! code is written twice.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::find::{Form, Site};

/// Text that is put in, at `at`, instead of the bytes up to `to`.
struct Edit {
    at: usize,
    to: usize,
    text: String,
    /// Closing texts come first at a place, then opening ones, then what is replaced.
    class: u8,
    /// Among equals: the inner closes first, the outer opens first.
    tie: (usize, u8),
    /// The site's index.
    site: usize,
}

/// A file with its mutants in it.
pub struct Woven {
    /// Its text.
    pub text: String,
    /// The bytes that were put in, and the index of their site.
    pub added: Vec<(Range<usize>, usize)>,
    /// From a site's first added byte to its last, with the site's index.
    pub places: Vec<(Range<usize>, usize)>,
}

/// Weaves the sites of a file. `numbers` has those of each site's mutants, none for a site that is
/// left out; `module` is the path of the switch's module.
pub fn weave(text: &str, sites: &[Site], numbers: &[Vec<u32>], module: &str) -> Woven {
    let mut edits = Vec::new();
    for (index, (site, numbers)) in sites.iter().zip(numbers).enumerate() {
        let mutants: Vec<(u32, &str)> = numbers
            .iter()
            .zip(&site.mutants)
            .map(|(number, mutant)| (*number, mutant.by.as_str()))
            .collect();
        if !mutants.is_empty() {
            edit(text, index, site, &mutants, module, &mut edits);
        }
    }
    edits.sort_by_key(|edit| (edit.at, edit.class, edit.tie));
    let mut out = String::with_capacity(text.len() * 3);
    let mut added = Vec::with_capacity(edits.len());
    let mut places: BTreeMap<usize, Range<usize>> = BTreeMap::new();
    let mut at = 0;
    for edit in &edits {
        out.push_str(&text[at..edit.at]);
        let begin = out.len();
        out.push_str(&edit.text);
        added.push((begin..out.len(), edit.site));
        places.entry(edit.site).or_insert(begin..begin).end = out.len();
        at = edit.to;
    }
    out.push_str(&text[at..]);
    Woven {
        text: out,
        added,
        places: places.into_iter().map(|(site, place)| (place, site)).collect(),
    }
}

fn edit(
    text: &str,
    index: usize,
    site: &Site,
    mutants: &[(u32, &str)],
    module: &str,
    edits: &mut Vec<Edit>,
) {
    let all = site.range();
    let rank = site.rank();
    let mut open = |at: usize, text: String| {
        edits.push(Edit {
            at,
            to: at,
            text,
            class: 1,
            tie: (usize::MAX - all.end, rank),
            site: index,
        });
    };
    let on = |number: u32| format!("{module}::on({number})");
    // `if on(1) { .. } else if on(2) { .. } else `
    let choice = |each: &dyn Fn(&str) -> String| -> String {
        mutants
            .iter()
            .map(|(number, by)| format!("if {} {{ {} }} else ", on(*number), each(by)))
            .collect()
    };
    let mut close: Option<String> = None;
    let mut replace: Option<(Range<usize>, String)> = None;
    match &site.form {
        Form::Binary { left, op, right: _, compares } => {
            let sign = &text[op.clone()];
            if *compares {
                open(left.start, "(match (&(".to_owned());
                replace = Some((op.clone(), "), &(".to_owned()));
                let other = choice(&|by| format!("*l {by} *r"));
                close = Some(format!(")) {{ (l, r) => {other}{{ *l {sign} *r }} }})"));
            } else {
                open(left.start, "(match ((".to_owned());
                replace = Some((op.clone(), "), (".to_owned()));
                let other = choice(&|by| format!("l {by} r"));
                close = Some(format!(")) {{ (l, r) => {other}{{ l {sign} r }} }})"));
            }
        }
        Form::Assign { left, op, right } => {
            // The right side is evaluated first, as it is with built-in types. The left one is
            // written once a branch.
            let (place, sign) = (&text[left.clone()], &text[op.clone()]);
            replace = Some((left.start..right.start, "(match (".to_owned()));
            let other = choice(&|by| format!("{place} {by} r"));
            close = Some(format!(") {{ r => {other}{{ {place} {sign} r }} }})"));
        }
        Form::Lazy { left, op, right: _ } => {
            // With the mutant on, `&&` goes on where the left side is false, and `||` where it is
            // true.
            let sign = if &text[op.clone()] == "&&" { "!=" } else { "==" };
            open(left.start, "(match (".to_owned());
            replace =
                Some((op.clone(), format!(") {{ l => if l {sign} {} {{ (", on(mutants[0].0))));
            close = Some(") } else { l } })".to_owned());
        }
        Form::Condition(range) => {
            open(range.start, "(match (".to_owned());
            let other = choice(&|by| by.to_owned());
            close = Some(format!(") {{ c => {other}{{ c }} }})"));
        }
        Form::Let(range) => open(range.start, format!("!{} && ", on(mutants[0].0))),
        Form::Not { op, inner: _ } => {
            replace = Some((op.clone(), "(match (".to_owned()));
            close = Some(format!(") {{ v => if {} {{ v }} else {{ !v }} }})", on(mutants[0].0)));
        }
        Form::Literal(range) => {
            open(range.start, format!("({}{{ ", choice(&|by| by.to_owned())));
            close = Some(" })".to_owned());
        }
        Form::Statement(range) => {
            open(range.start, format!("if !{} {{ ", on(mutants[0].0)));
            close = Some(" }".to_owned());
        }
        Form::Body(range) => {
            let texts: String = mutants
                .iter()
                .map(|(number, by)| format!(" if {} {{ return {by}; }}", on(*number)))
                .collect();
            open(range.start, texts);
        }
        Form::Arm(_) => close = Some(format!(" if !{}", on(mutants[0].0))),
    }
    if let Some(text) = close {
        edits.push(Edit {
            at: all.end,
            to: all.end,
            text,
            class: 0,
            tie: (usize::MAX - all.start, u8::MAX - rank),
            site: index,
        });
    }
    if let Some((range, text)) = replace {
        // A sign that begins an expression opens it, and must come after what is around it has
        // opened.
        edits.push(Edit {
            at: range.start,
            to: range.end,
            text,
            class: 2,
            tie: (usize::MAX - all.end, rank),
            site: index,
        });
    }
}
