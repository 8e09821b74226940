//! Where the objects that live were made.
//!
//! A census says that a heap is full of strings, and everything makes strings. So a heap that was
//! built with [`HeapBuilder::sample_allocations`](crate::HeapBuilder::sample_allocations) keeps the
//! stacks of a few objects (see [`samples`](crate::memory::samples)), and this page sums them up:
//! the samples with the same stack and thread are one site, each sample counts for as many objects
//! as it stands for, and only now the addresses become names.
//!
//! For example, a heap draws one byte of 512 KiB, and 20 strings of 64 bytes that one line has made
//! are samples. Then that line has made about 20 · 8192 of the strings that live, some 10 MiB.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::fallible::NoMemory;
use crate::base::stack;
use crate::diagnose::protobuf::Message;
use crate::heap::model::ObjectModel;
use crate::heap::mutator::ModelMutator;
use crate::memory::samples::Sample;
use crate::memory::shape::PageKind;
use crate::object::state::{self, StateByte};

/// The places of the program that have made the objects that live, estimated from samples.
///
/// Of a site that `n` samples belong to, objects and bytes are wrong by about one part in the root
/// of `n`: by a tenth for 100 samples.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AllocationSites {
    /// The sites, those with the most bytes of old objects first.
    pub sites: Vec<AllocationSite>,
    /// The bytes of which the heap draws one.
    pub sampled_bytes: usize,
    /// Samples since the heap was made that are missing, because memory was refused for them.
    pub lost: u64,
}

/// The objects that live and that one thread, or several of one name, made with one stack.
///
/// An object counts until its memory is freed. It is old if it has survived a collection, or was
/// promoted; one that is not tracked, if a collection has ended since it was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AllocationSite {
    /// The stack, from the line that has called the library outwards, at most 64 calls deep.
    pub frames: Vec<SiteFrame>,
    /// The name of the thread, if it has one.
    pub thread: Option<String>,
    /// How many samples the estimates rest on.
    pub samples: usize,
    /// The objects.
    pub objects: u64,
    /// The bytes of their cells.
    pub bytes: u64,
    /// The old objects among them.
    pub old_objects: u64,
    /// The bytes of their cells.
    pub old_bytes: u64,
    /// The time since the first of the samples was made.
    pub oldest: Duration,
    /// The time since the last of the samples was made.
    pub youngest: Duration,
}

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SiteFrame {
    /// Its name, or the address where the program has none.
    pub function: String,
    /// Its file, if the program has debug information.
    pub file: Option<String>,
    /// The line of the call, as above.
    pub line: Option<u32>,
}

impl fmt::Display for SiteFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " ({file}:{line})"),
            _ => Ok(()),
        }
    }
}

impl SiteFrame {
    /// The functions of one return address, of which all but the last are inlined into the next.
    fn all_at(address: usize) -> Vec<Self> {
        let mut found = Vec::new();
        let name = |function: Option<String>| function.unwrap_or_else(|| format!("{address:#x}"));
        stack::resolve(address, |function, file, line| {
            found.push(Self { function: name(function), file, line });
        });
        if found.is_empty() {
            found.push(Self { function: name(None), file: None, line: None });
        }
        found
    }

    /// Whether the function belongs to the library, or to what it calls to look at the stack.
    fn is_inside(&self) -> bool {
        let package = self.function.trim_start_matches('<').split("::").next();
        ["standstill", "backtrace", "core", "std", "alloc"].map(Some).contains(&package)
    }
}

/// The samples of one site, before their addresses have names.
#[derive(Default)]
struct Sums {
    samples: usize,
    /// Objects, bytes; old objects, old bytes.
    estimates: [f64; 4],
    /// Ages: of the oldest and of the youngest.
    ages: Option<(Duration, Duration)>,
}

impl AllocationSites {
    /// Sums up samples, each with the objects that it stands for, and whether it is old.
    fn of(samples: &[(Arc<Sample>, (f64, bool))]) -> Vec<AllocationSite> {
        let now = Instant::now();
        let mut sums: HashMap<(&[usize], Option<&str>), Sums> = HashMap::new();
        for (sample, (weight, is_old)) in samples {
            let name = sample.thread.as_ref().and_then(|thread| thread.name());
            let site = sums.entry((&sample.stack, name)).or_default();
            site.samples += 1;
            let bytes = weight * sample.bytes as f64;
            let old = if *is_old { 1.0 } else { 0.0 };
            let more = [*weight, bytes, old * weight, old * bytes];
            site.estimates.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            let age = now.saturating_duration_since(sample.since);
            let (oldest, youngest) = site.ages.get_or_insert((age, age));
            (*oldest, *youngest) = (age.max(*oldest), age.min(*youngest));
        }
        let mut named: HashMap<usize, Vec<SiteFrame>> = HashMap::new();
        let mut sites: Vec<_> = sums
            .into_iter()
            .map(|((stack, thread), Sums { samples, estimates, ages })| {
                let mut frames = Vec::new();
                for &address in stack {
                    frames.extend_from_slice(
                        named.entry(address).or_insert_with(|| SiteFrame::all_at(address)),
                    );
                }
                let inside = frames.iter().take_while(|frame| frame.is_inside()).count();
                // All, where the program has no names.
                if inside < frames.len() {
                    frames.drain(..inside);
                }
                let [objects, bytes, old_objects, old_bytes] =
                    estimates.map(|estimate| estimate.round() as u64);
                let thread = thread.map(str::to_owned);
                let (oldest, youngest) = ages.unwrap_or_default();
                AllocationSite {
                    frames,
                    thread,
                    samples,
                    objects,
                    bytes,
                    old_objects,
                    old_bytes,
                    oldest,
                    youngest,
                }
            })
            .collect();
        sites.sort_by_key(|site| std::cmp::Reverse((site.old_bytes, site.bytes)));
        sites
    }

    /// Writes a profile that `go tool pprof` and other viewers of this format open. It has the old
    /// objects and their bytes, with which viewers begin, and all that live (`inuse_objects`,
    /// `inuse_space`). Each site has the labels `thread`, `oldest` and `youngest`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_pprof(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut strings = Strings::default();
        let mut kind = |kind, unit| {
            let mut value = Message::default();
            value.number(1, strings.number(kind)).number(2, strings.number(unit));
            value.0
        };
        let mut profile = Message::default();
        for (name, unit) in [
            ("old_objects", "count"),
            ("old_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ] {
            profile.bytes(1, &kind(name, unit));
        }
        profile.bytes(11, &kind("space", "bytes")).number(12, self.sampled_bytes as u64);
        profile.number(14, strings.number("old_space"));
        let mut locations: HashMap<&SiteFrame, u64> = HashMap::new();
        for site in &self.sites {
            let mut stack = Vec::new();
            for frame in &site.frames {
                let next = locations.len() as u64 + 1;
                let id = *locations.entry(frame).or_insert(next);
                stack.push(id);
                if id < next {
                    continue;
                }
                // A location with one line of a function, all with the same number.
                let (mut line, mut location, mut function) =
                    <(Message, Message, Message)>::default();
                line.number(1, id).number(2, frame.line.unwrap_or(0).into());
                location.number(1, id).bytes(4, &line.0);
                function.number(1, id).number(2, strings.number(&frame.function));
                function.number(4, strings.number(frame.file.as_deref().unwrap_or_default()));
                profile.bytes(4, &location.0).bytes(5, &function.0);
            }
            let mut sample = Message::default();
            sample.packed(1, stack.into_iter());
            let values = [site.old_objects, site.old_bytes, site.objects, site.bytes];
            sample.packed(2, values.into_iter());
            if let Some(thread) = &site.thread {
                let mut label = Message::default();
                label.number(1, strings.number("thread")).number(2, strings.number(thread));
                sample.bytes(3, &label.0);
            }
            for (key, age) in [("oldest", site.oldest), ("youngest", site.youngest)] {
                let mut label = Message::default();
                label.number(1, strings.number(key)).number(3, age.as_secs());
                label.number(4, strings.number("seconds"));
                sample.bytes(3, &label.0);
            }
            profile.bytes(2, &sample.0);
        }
        strings.list.iter().for_each(|text| _ = profile.bytes(6, text.as_bytes()));
        out.write_all(&profile.0)?;
        out.flush()
    }
}

/// The table of texts of a profile, whose first one is empty.
struct Strings {
    list: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Default for Strings {
    fn default() -> Self {
        let mut new = Self { list: Vec::new(), numbers: HashMap::new() };
        new.number("");
        new
    }
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        let next = self.list.len() as u64;
        *self.numbers.entry(text.to_owned()).or_insert_with(|| {
            self.list.push(text.to_owned());
            next
        })
    }
}

/// The ten sites with the most bytes of old objects, each with its five innermost calls.
impl fmt::Display for AllocationSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let old = |site: &&AllocationSite| site.old_objects > 0;
        writeln!(
            f,
            "old objects, by the place that made them (1 of {} bytes)",
            self.sampled_bytes
        )?;
        for site in self.sites.iter().filter(old).take(10) {
            let AllocationSite { old_objects, old_bytes, samples, oldest, .. } = site;
            write!(f, "{old_bytes} bytes, {old_objects} objects, {samples} samples, ")?;
            writeln!(
                f,
                "the first {oldest:.1?} ago by {}",
                match &site.thread {
                    Some(name) => format!("thread '{name}'"),
                    None => "a thread without a name".into(),
                }
            )?;
            for frame in site.frames.iter().take(5) {
                writeln!(f, "    {frame}")?;
            }
        }
        match self.lost {
            0 => Ok(()),
            lost => writeln!(f, "{lost} samples are missing: memory was refused for them"),
        }
    }
}

impl<M: ObjectModel> ModelMutator<M> {
    /// The places of the program that have made the objects that live. `None`: the heap was not
    /// built with [`HeapBuilder::sample_allocations`](crate::HeapBuilder::sample_allocations).
    ///
    /// It stops nothing. The thread is detached while it reads the program's debug information,
    /// which takes tenths of a second the first time. The child of a fork must not call it if
    /// another thread did at the fork.
    ///
    /// # Panics
    ///
    /// As for [`detach`](Self::detach).
    #[track_caller]
    pub fn allocation_sites(&mut self) -> Option<AllocationSites> {
        let core = self.core();
        let (samples, now) = (core.space.samples()?, core.totals.epoch());
        // This thread is attached, so no stop writes states now.
        let tell = |address, sample: &Sample| {
            let page = core.space.page(core.space.page_index(address)).shape();
            let granules = if page.kind() == PageKind::Small { page.cell() } else { 1 };
            let first = core.space.granule(address);
            let states = core.space.states()[first..first + granules].iter();
            // An object with a prefix does not start with its cell.
            let state = states.map(|state| StateByte(state).get()).find(|&state| state != 0);
            let is_old = match state.unwrap_or(0) {
                state if state & state::TRACKED != 0 => state & state::OLD != 0,
                _ => now > sample.collections,
            };
            (samples.weight(sample.bytes), is_old)
        };
        let (list, lost) = samples.list(tell).unwrap_or_else(NoMemory::abort_process);
        let sampled_bytes = samples.mean;
        let sites = self.detach(|| AllocationSites::of(&list));
        Some(AllocationSites { sites, sampled_bytes, lost })
    }
}
