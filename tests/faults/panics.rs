//! Panics that meet: every two of the places where user code can panic, in one object and in two
//! neighbours of one garbage ring. The process continues; each panic is reported; all objects that
//! the panics do not keep are freed at once; the next collection frees the rest.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use standstill::{
    CollectionEvent, During, Finalizer, Gc, GcCell, Heap, Mutator, Pacing, Trace, Tracer, WeakRef,
};

use crate::{Alive, Life};

/// Where user code runs. The order is that of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    /// When references are counted.
    Traverse,
    Callback,
    Finalize,
    /// The check for resurrected objects.
    TraverseAgain,
    Clear,
    Drop,
    Stop,
}
use Place::*;

const PLACES: [Place; 8] = [Start, Traverse, Callback, Finalize, TraverseAgain, Clear, Drop, Stop];

impl Place {
    /// The report's text for a panic there.
    fn during(self) -> During {
        match self {
            Start | Stop => During::CollectionCallback,
            Traverse | TraverseAgain => During::Traverse,
            Callback => During::WeakCallback,
            Finalize => During::Finalize,
            Clear => During::Clear,
            Drop => During::Drop,
        }
    }
}

/// Which places panic, and how often they have.
#[derive(Default)]
struct Plan {
    /// Places of the first object and of the second; those of the heap are in either.
    places: Mutex<[Vec<Place>; 2]>,
    thrown: Mutex<Vec<Place>>,
    finalized: AtomicUsize,
}

impl Plan {
    /// Panics, if `place` of the object `who` is to. Each does so until the plan is dropped.
    fn reach(&self, place: Place, who: usize) {
        let mine = match self.places.lock() {
            Ok(places) => places.get(who).is_some_and(|places| places.contains(&place)),
            Err(_) => false,
        };
        if mine {
            self.thrown.lock().unwrap().push(place);
            panic!("in {place:?} of {who}");
        }
    }

    /// The heap's own callbacks.
    fn reach_heap(&self, place: Place) {
        let mine = self.places.lock().unwrap().iter().any(|places| places.contains(&place));
        if mine {
            self.thrown.lock().unwrap().push(place);
            panic!("in {place:?}");
        }
    }
}

struct Touchy {
    who: usize,
    next: GcCell<Option<Gc<Touchy>>>,
    traversals: AtomicUsize,
    plan: Arc<Plan>,
    _life: Life,
}

impl Trace for Touchy {
    const FINALIZER: Option<Finalizer<Self>> = Some(Finalizer::new(|this, _| {
        this.plan.finalized.fetch_add(1, SeqCst);
        this.plan.reach(Finalize, this.who);
    }));

    fn traverse(this: &Self, tracer: &mut Tracer) {
        // Nothing marks garbage: so the first look counts, and the second is the one after the
        // finalizers.
        let again = this.traversals.fetch_add(1, SeqCst) > 0;
        this.plan.reach(if again { TraverseAgain } else { Traverse }, this.who);
        Trace::traverse(&this.next, tracer);
    }

    fn clear(this: &Self, m: &Mutator) {
        this.plan.reach(Clear, this.who);
        Trace::clear(&this.next, m);
    }
}

impl std::ops::Drop for Touchy {
    fn drop(&mut self) {
        self.plan.reach(Place::Drop, self.who);
    }
}

type Watch = WeakRef<Touchy, (usize, Arc<Plan>)>;

fn called_back(weak: &Gc<Watch>, _: &Mutator) {
    let (who, plan) = weak.data();
    plan.reach(Callback, *who);
}

const RING: usize = 4;

/// Collects a ring. The plan's places in its first two objects panic.
fn panics_meet(workers: usize, places: [Vec<Place>; 2]) {
    let what = format!("{places:?} with {workers} workers");
    let heap =
        Heap::builder().reserve(1 << 30).workers(workers).serial_below(0).pacing(Pacing::manual());
    let heap = heap.build().expect("a heap");
    let (plan, alive) = (Arc::new(Plan::default()), Arc::<Alive>::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    heap.on_unraisable({
        let told = Arc::clone(&told);
        move |what| told.lock().unwrap().push(what.during)
    });
    heap.on_collection({
        let plan = Arc::clone(&plan);
        move |event| {
            plan.reach_heap(if matches!(event, CollectionEvent::Start(_)) { Start } else { Stop })
        }
    });
    let mut m = heap.attach();
    let all: Vec<Gc<Touchy>> = (0..RING)
        .map(|who| {
            m.alloc(Touchy {
                who,
                next: GcCell::default(),
                traversals: AtomicUsize::new(0),
                plan: Arc::clone(&plan),
                _life: Life::new(&alive),
            })
        })
        .collect();
    let watches: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(who, gc)| m.alloc_weak(gc, (who, Arc::clone(&plan)), called_back))
        .collect();
    for (at, gc) in all.iter().enumerate() {
        gc.next.set(&m, Some(all[(at + 1) % RING].clone()));
    }
    drop(all);

    let planned: Vec<Place> = places.iter().flatten().copied().collect();
    *plan.places.lock().unwrap() = places;
    let report = m.collect();

    // The places that were reached: all before the first failing traversal, and the heap's own
    // callbacks.
    let stops_at = planned
        .iter()
        .copied()
        .find(|place| matches!(place, Traverse))
        .or_else(|| planned.iter().copied().find(|place| matches!(place, TraverseAgain)));
    let is_reached = |place: Place| match (place, stops_at) {
        (Start | Stop, _) | (_, None) => true,
        (place, Some(stop)) => {
            PLACES.iter().position(|p| *p == place) <= PLACES.iter().position(|p| *p == stop)
        }
    };
    let thrown = plan.thrown.lock().unwrap().clone();
    for place in &planned {
        assert_eq!(thrown.contains(place), is_reached(*place), "{place:?} of {what}: {thrown:?}");
    }
    assert_eq!(report.abandoned.is_some(), stops_at.is_some(), "{what}");
    // Every panic is reported, except those of other workers that traversed at the same time.
    let count = |places: &[During], during| places.iter().filter(|d| **d == during).count();
    let (thrown, told) =
        (thrown.iter().map(|p| p.during()).collect::<Vec<_>>(), told.lock().unwrap().clone());
    for place in PLACES.map(Place::during) {
        if place == During::Traverse {
            assert_eq!(count(&told, place), usize::from(stops_at.is_some()), "{what}: {told:?}");
        } else {
            assert_eq!(count(&told, place), count(&thrown, place), "{place:?} of {what}: {told:?}");
        }
    }
    let finalized = if stops_at == Some(Traverse) { 0 } else { RING };
    assert_eq!(plan.finalized.load(SeqCst), finalized, "{what}");
    let (freed, left) = if stops_at.is_some() { (0, RING) } else { (RING, 0) };
    assert_eq!((report.collected, alive.now()), (freed, left), "{what}");

    // No object panics any more.
    *plan.places.lock().unwrap() = Default::default();
    m.verify().expect("a whole heap");
    let report = m.collect();
    assert_eq!((report.abandoned, report.collected, alive.now()), (None, left, 0), "{what}");
    assert_eq!(plan.finalized.load(SeqCst), RING, "each once: {what}");
    m.verify().expect("a whole heap");
    drop(watches);
    m.collect();
    assert_eq!(heap.stats().live_objects, 0, "{what}");
}

#[test]
fn every_two_panics_meet_in_one_object() {
    quietly(|| {
        for (at, &one) in PLACES.iter().enumerate() {
            for &other in &PLACES[at..] {
                panics_meet(1, [vec![one, other], vec![]]);
                panics_meet(2, [vec![one, other], vec![]]);
            }
        }
    });
}

#[test]
fn every_two_panics_meet_in_two_objects() {
    quietly(|| {
        for one in PLACES {
            for other in PLACES {
                panics_meet(1, [vec![one], vec![other]]);
                panics_meet(2, [vec![one], vec![other]]);
            }
        }
    });
}

#[test]
fn all_places_panic() {
    quietly(|| {
        for workers in [1, 2] {
            let others: Vec<_> =
                PLACES.into_iter().filter(|p| !matches!(p, Traverse | TraverseAgain)).collect();
            panics_meet(workers, [PLACES.to_vec(), PLACES.to_vec()]);
            panics_meet(workers, [others.clone(), others]);
        }
    });
}

/// Hundreds of panics are expected: their messages say nothing. Those that are not come out of `f`.
fn quietly(f: impl FnOnce() + Send + 'static) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
            if !PLACES.iter().any(|place| text.starts_with(&format!("in {place:?}"))) {
                usual(info);
            }
        }));
    });
    f();
}
