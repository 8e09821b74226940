//! The workload: threads that serve requests from a table that they share.
//!
//! ```text
//! Table ─► Shard ─► Bucket ◄────────┐ friends        stays for ever
//!   │                 │  ▲          │
//!   ▼                 ▼  └────── Account ◄─► Items    stays until it is replaced: then a cycle is garbage, and old
//! Mailbox ─► letters
//!              │
//!              ▼
//!            Part ◄─► Parts ─► Item                   a session: dropped, or kept a while, or sent to another thread
//! ```
//!
//! A request builds a session of some tens to hundreds of parts, some of which refer to items of
//! the table. Every other session has links to the parents, so that counting alone does not free
//! it. Every other request replaces an account. Every eighth sends its session to the next thread,
//! which adds a part of its own before it drops it.

use std::collections::VecDeque;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pauses::random::SplitMix;
use standstill::{Gc, GcCell, Heap, Mutator, Trace};

use crate::busy::Interval;
use crate::ledger::Witness;

/// Buckets of a shard.
const SHARD: usize = 64;
/// Items of an account.
const ITEMS: usize = 7;
/// Objects in the table for each bucket, the shards left out.
const OBJECTS: usize = 1 + 1 + ITEMS;
/// The smallest session, and the first size that is too large.
const PARTS: std::ops::Range<usize> = 20..200;
/// Parts of a session that hang on one part.
const FAN: usize = 8;
/// Objects between two safepoints inside a request.
const STRIDE: usize = 32;
/// Letters that a mailbox holds.
const LETTERS: usize = 64;
/// Nanoseconds from which a safepoint counts as a pause.
const PAUSE: u64 = 20_000;

#[derive(Trace)]
pub(crate) struct Table {
    shards: Vec<Gc<Shard>>,
    mailboxes: Vec<Gc<Mailbox>>,
    witness: Witness,
}

#[derive(Trace)]
pub(crate) struct Shard {
    buckets: Vec<Gc<Bucket>>,
    witness: Witness,
}

#[derive(Trace)]
struct Bucket {
    account: GcCell<Option<Gc<Account>>>,
    witness: Witness,
}

#[derive(Trace)]
struct Account {
    friends: [Gc<Bucket>; 2],
    items: GcCell<Vec<Gc<Item>>>,
    witness: Witness,
}

#[derive(Trace)]
struct Item {
    account: Gc<Account>,
    amount: u64,
    witness: Witness,
}

#[derive(Trace)]
struct Part {
    parent: Option<Gc<Part>>,
    parts: GcCell<Vec<Gc<Part>>>,
    item: Option<Gc<Item>>,
    witness: Witness,
}

#[derive(Trace)]
struct Mailbox {
    letters: GcCell<Vec<Gc<Part>>>,
    witness: Witness,
}

impl Table {
    fn bucket(&self, random: &mut SplitMix) -> &Gc<Bucket> {
        let shard = &*self.shards[random.below(self.shards.len())];
        &shard.buckets[random.below(SHARD)]
    }
}

/// The data that all threads share.
pub(crate) struct Plan<'p> {
    pub(crate) heap: &'p Heap,
    pub(crate) threads: usize,
    pub(crate) live: usize,
    /// Sessions that a thread keeps before it drops the oldest.
    pub(crate) recent: usize,
    pub(crate) length: Duration,
    /// The clock of the pauses.
    pub(crate) now: &'p (dyn Fn() -> u64 + Sync),
    /// A barrier for all threads and the main thread, between the steps: shards made, table made,
    /// table filled, served.
    pub(crate) step: &'p Barrier,
    pub(crate) made: Mutex<Vec<Gc<Shard>>>,
    pub(crate) table: Mutex<Option<Gc<Table>>>,
}

impl Plan<'_> {
    fn shards(&self) -> usize {
        (self.live / (OBJECTS * SHARD)).max(self.threads)
    }

    /// Makes the table out of the shards that the threads have made.
    pub(crate) fn lay_table(&self) {
        let m = self.heap.attach();
        let mailbox = || m.alloc(Mailbox { letters: GcCell::default(), witness: Witness::new() });
        let mailboxes = (0..self.threads).map(|_| mailbox()).collect();
        let shards = std::mem::take(&mut *self.made.lock().expect("no thread panics"));
        let table = m.alloc(Table { shards, mailboxes, witness: Witness::new() });
        *self.table.lock().expect("no thread panics") = Some(table);
    }
}

/// The observations of a thread while it served.
pub(crate) struct Served {
    pub(crate) requests: u64,
    /// Nanoseconds that each took.
    pub(crate) latencies: Histogram<u64>,
    /// Safepoints that took longer than [`PAUSE`], also before the first request.
    pub(crate) pauses: Vec<Interval>,
}

/// A thread that serves.
struct Server<'p> {
    m: Mutator,
    id: usize,
    plan: &'p Plan<'p>,
    random: SplitMix,
    pauses: Vec<Interval>,
}

/// One thread's work, from its part of the table to its last request.
pub(crate) fn serve(plan: &Plan<'_>, id: usize) -> Served {
    let m = plan.heap.attach();
    let mut server = Server { m, id, plan, random: SplitMix::new(id as u64), pauses: Vec::new() };
    let shards: Vec<_> =
        (id..plan.shards()).step_by(plan.threads).map(|_| server.shard()).collect();
    plan.made.lock().expect("no thread panics").extend(shards.iter().cloned());
    server.meet();
    server.meet();
    let table = plan.table.lock().expect("no thread panics").clone().expect("it has been laid");
    for shard in shards {
        server.fill(&table, &shard);
    }
    server.meet();
    let served = server.requests(&table);
    server.meet();
    served
}

impl Server<'_> {
    /// Waits for the others.
    fn meet(&mut self) {
        self.m.detach(|| self.plan.step.wait());
    }

    /// A safepoint that reads the clock.
    fn safepoint(&mut self) {
        let from = (self.plan.now)();
        self.m.safepoint();
        let pause = Interval { from, to: (self.plan.now)() };
        if pause.length() >= PAUSE {
            self.pauses.push(pause);
        }
    }

    fn shard(&mut self) -> Gc<Shard> {
        let bucket =
            || self.m.alloc(Bucket { account: GcCell::default(), witness: Witness::new() });
        let buckets = (0..SHARD).map(|_| bucket()).collect();
        let shard = self.m.alloc(Shard { buckets, witness: Witness::new() });
        self.safepoint();
        shard
    }

    fn fill(&mut self, table: &Gc<Table>, shard: &Gc<Shard>) {
        for place in 0..SHARD {
            let account = self.account(table);
            shard.buckets[place].account.set(&self.m, Some(account));
            self.safepoint();
        }
    }

    fn account(&mut self, table: &Gc<Table>) -> Gc<Account> {
        let m = &self.m;
        let friends = [(); 2].map(|()| table.bucket(&mut self.random).clone());
        let account =
            m.alloc(Account { friends, items: GcCell::default(), witness: Witness::new() });
        let item =
            |amount| m.alloc(Item { account: account.clone(), amount, witness: Witness::new() });
        account.items.set(m, (0..ITEMS as u64).map(item).collect());
        account
    }

    /// Serves requests, one after the other, as long as the plan says.
    fn requests(&mut self, table: &Gc<Table>) -> Served {
        let mut latencies = Histogram::new(3).expect("three digits are allowed");
        let mut recent = VecDeque::with_capacity(self.plan.recent + 1);
        let mut requests = 0;
        let end = Instant::now() + self.plan.length;
        let mut begun = Instant::now();
        while begun < end {
            self.request(table, &mut recent);
            requests += 1;
            let done = Instant::now();
            latencies.record((done - begun).as_nanos() as u64).expect("it resizes itself");
            begun = done;
        }
        Served { requests, latencies, pauses: std::mem::take(&mut self.pauses) }
    }

    fn request(&mut self, table: &Gc<Table>, recent: &mut VecDeque<Gc<Part>>) {
        let session = self.session(table);
        if self.random.below(2) == 0 {
            let account = self.account(table);
            let bucket = table.bucket(&mut self.random);
            bucket.account.set(&self.m, Some(account));
        }
        if self.random.below(8) == 0 {
            self.correspond(table, &session);
        }
        recent.push_back(session);
        if recent.len() > self.plan.recent {
            recent.pop_front();
        }
        self.safepoint();
    }

    fn part(&mut self, parent: Option<Gc<Part>>, item: Option<Gc<Item>>) -> Gc<Part> {
        self.m.alloc(Part { parent, parts: GcCell::default(), item, witness: Witness::new() })
    }

    /// A chain of fans.
    fn session(&mut self, table: &Gc<Table>) -> Gc<Part> {
        let parts = PARTS.start + self.random.below(PARTS.len());
        let is_cyclic = self.random.below(2) == 0;
        let session = self.part(None, None);
        let mut hub = session.clone();
        for made in 1..parts {
            let item = if self.random.below(8) == 0 { self.item(table) } else { None };
            let part = self.part(is_cyclic.then(|| hub.clone()), item);
            hub.parts.lock(&self.m).push(part.clone());
            if made % FAN == 0 {
                hub = part;
            }
            if made % STRIDE == 0 {
                self.safepoint();
            }
        }
        session
    }

    /// One of the items of one of the accounts, unless a sum over them says no.
    fn item(&mut self, table: &Gc<Table>) -> Option<Gc<Item>> {
        let m = &self.m;
        let account = table.bucket(&mut self.random).account.get(m)?;
        let items = account.items.lock(m);
        let sum: u64 = items.iter().map(|item| item.amount).sum();
        items.get((sum as usize + self.random.below(ITEMS)) % ITEMS).cloned()
    }

    /// Sends a session to the next thread, and answers the letters that have come.
    fn correspond(&mut self, table: &Gc<Table>, session: &Gc<Part>) {
        let mailboxes = &table.mailboxes;
        let peer = &mailboxes[(self.id + 1) % mailboxes.len()];
        let mut letters = peer.letters.lock(&self.m);
        if letters.len() < LETTERS {
            letters.push(session.clone());
        }
        drop(letters);
        let letters = mailboxes[self.id].letters.take(&self.m);
        for letter in letters {
            let answer = self.part(Some(letter.clone()), None);
            letter.parts.lock(&self.m).push(answer);
        }
    }
}
