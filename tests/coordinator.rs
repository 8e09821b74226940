//! The coordinator with real threads, from the view of a profiler, a debugger or a fork handler.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use standstill::safepoint::{
    AttachError, Config, Coordinator, Participant, STOP, SlowStopKind, StopError, StopPurpose,
    Suspend, ThreadId, TraversalGuard, WorldStopped, current, is_stopping, is_traversing,
    traversing,
};

/// A type cannot have `$trait`: if it had, the call below would be ambiguous.
macro_rules! assert_not_impl {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            trait Ambiguous<A> {
                fn ask() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Has;
            impl<T: ?Sized + $trait> Ambiguous<Has> for T {}
            <$type as Ambiguous<_>>::ask()
        };
    };
}

assert_not_impl!(Participant<()>: Send);
assert_not_impl!(Participant<()>: Sync);
assert_not_impl!(WorldStopped<'static, ()>: Send);
assert_not_impl!(TraversalGuard: Send);
assert_not_impl!(standstill::safepoint::Suspended<'static, ()>: Send);
assert_not_impl!(standstill::safepoint::NoSafepoint<'static>: Send);
assert_not_impl!(standstill::safepoint::ForkGuard<'static, ()>: Send);

const _: fn() = || {
    fn is_sync<T: Sync>() {}
    fn is_send<T: Send>() {}
    is_sync::<WorldStopped<'static, ()>>();
    is_sync::<Coordinator<usize>>();
    is_send::<Coordinator<usize>>();
};

fn attached<T: Send + Sync + 'static>(
    coordinator: &Arc<Coordinator<T>>,
    data: T,
) -> Participant<T> {
    let me = coordinator.register(data);
    me.attach().unwrap();
    me
}

/// The data that a stop protects: two words that attached threads change one after the other.
#[derive(Default)]
struct World(AtomicUsize, AtomicUsize);

impl World {
    fn touch(&self) {
        let n = self.0.load(Relaxed) + 1;
        self.0.store(n, Relaxed);
        std::hint::spin_loop();
        self.1.store(n, Relaxed);
    }

    fn check(&self) {
        assert_eq!(self.0.load(Relaxed), self.1.load(Relaxed));
    }
}

fn rounds(usual: usize) -> usize {
    if cfg!(miri) { usual / 100 + 1 } else { usual }
}

#[test]
fn stress() {
    let coordinator = Coordinator::<Mutex<usize>>::new();
    let worlds: Arc<[World; 6]> = Arc::default();
    let ids: [Mutex<Option<ThreadId>>; 2] = Default::default();
    let done = AtomicBool::new(false);
    let finished = AtomicUsize::new(0);
    thread::scope(|s| {
        for world in worlds.iter().take(2) {
            s.spawn(|| {
                let me = attached(&coordinator, Mutex::new(0));
                while !done.load(Relaxed) {
                    world.touch();
                    if me.poll() != 0 {
                        assert!(me.park());
                        me.take_requests(!0);
                    }
                    // More threads than processors: without it a stop takes time slices.
                    thread::yield_now();
                }
            });
        }
        // In and out.
        s.spawn(|| {
            let me = coordinator.register(Mutex::new(0));
            *ids[0].lock().unwrap() = Some(me.id());
            while !done.load(Relaxed) {
                me.attach().unwrap();
                worlds[2].touch();
                assert!(me.detach());
                assert_eq!(current(), 0);
                thread::yield_now();
            }
        });
        // Births and exits.
        s.spawn(|| {
            while !done.load(Relaxed) {
                let me = coordinator.register(Mutex::new(0));
                *ids[1].lock().unwrap() = Some(me.id());
                me.attach().unwrap();
                worlds[3].touch();
                if me.id().get().is_multiple_of(2) {
                    me.detach();
                }
                drop(me);
                thread::yield_now();
            }
        });
        // Acts for others, from outside.
        s.spawn(|| {
            while !done.load(Relaxed) {
                coordinator.poke_attached(4);
                for id in &ids {
                    let id = *id.lock().unwrap();
                    if let Some(Suspend::Suspended(guard)) = id.map(|id| coordinator.suspend(id)) {
                        *guard.try_lock().expect("no other thread acts for it") += 1;
                    }
                }
                thread::yield_now();
            }
        });
        for _ in 0..2 {
            s.spawn(|| {
                let me = attached(&coordinator, Mutex::new(0));
                for _ in 0..rounds(1_000) {
                    let stopped = me.stop().unwrap();
                    worlds.iter().for_each(World::check);
                    let mut n = 0;
                    stopped.threads(|_, count| {
                        drop(count.try_lock().expect("no thread acts for it"));
                        n += 1;
                    });
                    assert!(n >= 1);
                    thread::yield_now();
                    worlds.iter().for_each(World::check);
                }
                if finished.fetch_add(1, Relaxed) == 1 {
                    done.store(true, Relaxed);
                }
            });
        }
    });
    assert_eq!(coordinator.threads(), 0);
    let stats = coordinator.stats();
    assert_eq!((stats.threads, stats.attached, stats.failed_stops), (0, 0, 0));
    assert_eq!(stats.stops, 2 * rounds(1_000) as u64);
    assert!(stats.max_time_to_stop <= stats.time_to_stop);
}

#[test]
fn current_follows_attach_and_detach() {
    let coordinator = Coordinator::new();
    let me = coordinator.register(());
    assert!(me.id().get() <= ThreadId::MAX);
    assert_eq!((current(), me.is_attached()), (0, false));
    me.attach().unwrap();
    assert_eq!((current(), me.is_attached()), (me.id().get(), true));
    assert!(me.park(), "no stop is on: nothing to wait for");
    assert!(me.detach());
    assert!(!me.detach(), "once is enough");
    assert!(!me.park());
    assert_eq!(current(), 0);
    me.attach().unwrap();
    drop(me);
    assert_eq!(current(), 0);
    assert_eq!(coordinator.threads(), 0);
}

#[test]
fn a_thread_is_attached_once_in_the_whole_process() {
    let (here, there) = (Coordinator::new(), Coordinator::new());
    let me = attached(&here, ());
    assert_eq!(me.attach(), Err(AttachError::AlreadyAttached));
    assert_eq!(here.register(()).attach(), Err(AttachError::AlreadyAttached));
    let other = there.register(());
    assert_eq!(other.attach(), Err(AttachError::AlreadyAttached));
    assert_ne!(me.id(), other.id());
    me.detach();
    other.attach().unwrap();
    assert_eq!(current(), other.id().get());
}

#[test]
fn a_thousand_detached_threads_stop_without_being_asked() {
    const THREADS: usize = 1_000;
    let coordinator = Coordinator::new();
    let (ready, readied) = mpsc::channel();
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let (coordinator, ready) = (coordinator.clone(), ready.clone());
            let (go, gone) = mpsc::channel::<()>();
            let body = move || {
                let me = coordinator.register(n);
                me.attach().unwrap();
                me.detach();
                ready.send(()).unwrap();
                let _ = gone.recv();
            };
            (go, thread::Builder::new().stack_size(64 << 10).spawn(body).unwrap())
        })
        .collect();
    readied.iter().take(THREADS).for_each(drop);
    let me = attached(&coordinator, THREADS);
    for _ in 0..10 {
        let stopped = me.stop().unwrap();
        let mut sum = 0;
        stopped.threads(|_, n| sum += n);
        assert_eq!(sum, THREADS * (THREADS + 1) / 2);
    }
    assert_eq!(coordinator.stats().threads, THREADS + 1);
    assert_eq!(coordinator.stats().attached, 1);
    // Half of them end while the world stands.
    let stopped = me.stop().unwrap();
    for (go, thread) in threads.into_iter().step_by(2) {
        drop(go);
        thread.join().unwrap();
    }
    drop(stopped);
    drop(me.stop().unwrap());
}

#[test]
fn births_do_not_wait_but_attaching_does() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let stopped = me.stop().unwrap();
    let (born, birth) = mpsc::channel();
    let running = Arc::new(AtomicBool::new(false));
    let child = thread::spawn({
        let (coordinator, running) = (coordinator.clone(), running.clone());
        move || {
            let me = coordinator.register(());
            born.send(()).unwrap();
            me.attach().unwrap();
            assert!(running.load(SeqCst), "attached while the world was stopped");
        }
    });
    birth.recv().unwrap();
    assert_eq!(coordinator.threads(), 2);
    for _ in 0..100 {
        thread::yield_now();
    }
    running.store(true, SeqCst);
    drop(stopped);
    child.join().unwrap();
    assert_eq!(coordinator.threads(), 1);
}

#[test]
fn back_to_back_stops_starve_no_thread() {
    let coordinator = Coordinator::new();
    let turns: [AtomicUsize; 3] = Default::default();
    let done = AtomicBool::new(false);
    let most = 500;
    thread::scope(|s| {
        for turn in &turns {
            s.spawn(|| {
                let me = attached(&coordinator, ());
                while !done.load(Relaxed) {
                    if me.poll() & STOP != 0 {
                        me.park();
                        turn.fetch_add(1, Relaxed);
                    }
                    thread::yield_now();
                }
            });
        }
        let me = attached(&coordinator, ());
        while coordinator.stats().attached < 4 {
            thread::yield_now();
        }
        for stop in 0..rounds(most) {
            // All have been stopped `stop` times, and each must have come back from each but the
            // last.
            drop(me.stop().unwrap());
            for turn in &turns {
                assert!(
                    turn.load(Relaxed) >= stop.saturating_sub(1),
                    "a thread did not run between two stops"
                );
            }
        }
        done.store(true, Relaxed);
    });
}

#[test]
fn requesters_take_turns() {
    let coordinator = Coordinator::new();
    let inside = AtomicUsize::new(0);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let me = attached(&coordinator, ());
                for _ in 0..rounds(500) {
                    let stopped = me.stop().unwrap();
                    assert_eq!(inside.fetch_add(1, Relaxed), 0);
                    assert_eq!(stopped.requester(), me.id());
                    assert_eq!(inside.fetch_sub(1, Relaxed), 1);
                }
            });
        }
    });
    assert_eq!(coordinator.stats().stops, 4 * rounds(500) as u64);
}

#[test]
fn a_slow_stop_names_its_stragglers() {
    let coordinator = Coordinator::with_config(Config {
        slow_stop: Duration::from_millis(1),
        name: Some("test".into()),
        ..Config::default()
    });
    assert_eq!(coordinator.name(), Some("test"));
    let reports = Arc::new(AtomicUsize::new(0));
    let (started, start) = mpsc::channel();
    let straggler = thread::Builder::new()
        .name("straggler".into())
        .spawn({
            let (coordinator, reports) = (coordinator.clone(), reports.clone());
            move || {
                let me = attached(&coordinator, ());
                started.send(me.id()).unwrap();
                // It reaches no safepoint until it has been reported twice.
                while reports.load(SeqCst) < 2 {
                    thread::yield_now();
                }
            }
        })
        .unwrap();
    let straggler_id = start.recv().unwrap();
    let me = attached(&coordinator, ());
    let mine = me.id();
    // A callback that fails delays no thread, and may inspect the coordinator.
    coordinator.on_slow_stop(|_| panic!("a callback that panics; nothing is wrong"));
    let weak = Arc::downgrade(&coordinator);
    coordinator.on_slow_stop(move |report| {
        assert_eq!(weak.upgrade().unwrap().threads(), 2);
        let [straggler] = &report.stragglers[..] else { panic!("{report:?}") };
        let thread = &straggler.thread;
        assert_eq!((thread.id, thread.name.as_deref()), (straggler_id, Some("straggler")));
        assert!(!straggler.is_suspended && !straggler.has_ended);
        assert_eq!(report.waiter.as_ref().map(|waiter| waiter.id), Some(mine));
        assert_eq!(report.purpose, Some(StopPurpose::Request));
        assert_ne!(thread.id, mine);
        reports.fetch_add(1, SeqCst);
    });
    let stopped = me.stop().unwrap();
    assert!(stopped.time_to_stop() >= Duration::from_millis(1));
    drop(stopped);
    straggler.join().unwrap();
}

/// A wait of no time at all would double for ever without growing.
#[test]
fn reports_of_a_slow_stop_begin_after_a_millisecond_and_get_rarer_for_any_interval() {
    let coordinator =
        Coordinator::with_config(Config { slow_stop: Duration::ZERO, ..Config::default() });
    let (go_on, wait) = mpsc::channel();
    let (started, start) = mpsc::channel();
    thread::scope(|s| {
        let coordinator = &coordinator;
        s.spawn(move || {
            let me = attached(coordinator, ());
            started.send(()).unwrap();
            wait.recv().unwrap();
            drop(me);
        });
        start.recv().unwrap();
        let (tell, told) = mpsc::channel();
        coordinator.on_slow_stop(move |report| {
            tell.send(report.waited).unwrap();
            if report.waited >= Duration::from_millis(20) {
                let _ = go_on.send(());
            }
        });
        let me = attached(coordinator, ());
        drop(me.stop().unwrap());
        let waits: Vec<_> = told.try_iter().collect();
        assert!(waits[0] >= Duration::from_millis(1), "{waits:?}");
        assert!(waits.windows(2).all(|two| two[1] >= 2 * two[0]), "{waits:?}");
    });
}

/// Each of the three ways to wait for the end of a stop, and the end of a suspension.
#[test]
fn a_thread_that_waits_for_a_stop_or_a_suspension_names_its_thread() {
    type Wait = fn(&Participant<()>);
    let park: Wait = |me| {
        while me.poll() & STOP == 0 {
            thread::yield_now();
        }
        me.park();
    };
    let attach: Wait = |me| {
        me.detach();
        while !me.coordinator().stats().stops.eq(&1) {
            thread::yield_now();
        }
        me.attach().unwrap();
    };
    let stop: Wait = |me| {
        while me.poll() & STOP == 0 {
            thread::yield_now();
        }
        drop(me.stop().unwrap());
    };
    for (wait, is_leaked) in
        [park, attach, stop].into_iter().flat_map(|wait| [(wait, false), (wait, true)])
    {
        let config = Config { slow_stop: Duration::from_millis(5), ..Config::default() };
        let coordinator = Coordinator::with_config(config);
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let other = Coordinator::<()>::new();
        coordinator.on_slow_stop(move |slow| {
            // The thread is detached, and can do nothing here that a detached thread in a traversal
            // cannot.
            assert_eq!(current(), 0);
            assert_eq!(other.register(()).attach(), Err(AttachError::Traversing));
            let _ = tell.lock().unwrap().send((thread::current().id(), slow.clone()));
        });
        let me = attached(&coordinator, ());
        thread::scope(|s| {
            let coordinator = &coordinator;
            let (ready, is_ready) = mpsc::channel();
            let waiter = s.spawn(move || {
                let me = attached(coordinator, ());
                ready.send(thread::current().id()).unwrap();
                wait(&me);
                // The attachment is unchanged.
                assert_eq!(current(), me.id().get());
                assert!(me.is_attached());
            });
            let waiter_id = is_ready.recv().unwrap();
            let stopped = me.stop().unwrap();
            let waits: Vec<_> = (0..3)
                .map(|_| {
                    let (by, slow) = told.recv_timeout(Duration::from_secs(60)).expect("a report");
                    let [holder] = &slow.stragglers[..] else { panic!("{slow:?}") };
                    assert_eq!(
                        (slow.kind, by, holder.thread.id),
                        (SlowStopKind::Held, waiter_id, me.id())
                    );
                    assert!(slow.to_string().contains("has been stopped"), "{slow}");
                    slow.waited
                })
                .collect();
            assert!(waits.windows(2).all(|two| two[1] >= 2 * two[0]), "{waits:?}");
            if is_leaked {
                std::mem::forget(stopped);
                drop(me);
            } else {
                drop(stopped);
                me.detach();
            }
            waiter.join().unwrap();
        });
    }

    let config = Config { slow_stop: Duration::from_millis(5), ..Config::default() };
    let coordinator = Coordinator::with_config(config);
    let (tell, told) = mpsc::channel();
    coordinator.on_slow_stop(move |slow| tell.send(slow.clone()).unwrap());
    let me = coordinator.register(());
    let id = me.id();
    thread::scope(|s| {
        let (ready, is_ready) = mpsc::channel();
        let coordinator = &coordinator;
        let suspends = s.spawn(move || {
            let suspended = coordinator.suspend(id);
            assert!(matches!(suspended, Suspend::Suspended(_)));
            ready.send(()).unwrap();
            for last in [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(10)] {
                let slow = told.recv_timeout(Duration::from_secs(60)).expect("a report");
                let [straggler] = &slow.stragglers[..] else { panic!("{slow:?}") };
                assert_eq!((slow.kind, straggler.thread.id), (SlowStopKind::Suspended, id));
                assert!(slow.waited > last && straggler.is_suspended);
                assert!(slow.to_string().contains("which another thread has suspended"), "{slow}");
            }
        });
        is_ready.recv().unwrap();
        me.attach().unwrap();
        suspends.join().unwrap();
    });
}

#[test]
fn a_thread_that_leaks_its_participant_fails_every_stop_and_blocks_no_thread() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let bystander = coordinator.register(());
    let leak = |attach: bool| {
        let coordinator = coordinator.clone();
        let body = move || {
            let me = coordinator.register(());
            if attach {
                me.attach().unwrap();
            }
            let id = me.id();
            std::mem::forget(me);
            id
        };
        thread::Builder::new().name("leaker".into()).spawn(body).unwrap().join().unwrap()
    };
    leak(false);
    drop(me.stop().expect("a leaked participant that is detached is harmless"));
    let id = leak(true);
    for _ in 0..3 {
        let error = me.stop().unwrap_err();
        assert_eq!(error, StopError::ThreadGone { name: Some("leaker".into()), id });
        assert!(error.to_string().contains("leaker"));
        assert!(me.is_attached() && !is_stopping());
        me.detach();
        bystander.attach().unwrap();
        bystander.detach();
        me.attach().unwrap();
    }
    assert!(coordinator.prepare_fork(&me).is_err());
    assert_eq!(coordinator.stats().failed_stops, 4);
}

/// A thread that C has started attaches in the destructor of a `pthread` key, after all destructors
/// of Rust's thread-locals. The library cannot watch it. A stop that waits for it asks the system
/// whether it still exists.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_thread_that_leaks_its_participant_after_its_last_destructor_fails_every_stop() {
    unsafe extern "C" fn attach_key(coordinator: *mut libc::c_void) {
        // SAFETY: the test keeps it.
        let coordinator = unsafe { &*coordinator.cast::<Arc<Coordinator<()>>>() };
        std::mem::forget(attached(coordinator, ()));
    }
    extern "C" fn body(keyed: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the test keeps it.
        let (key, coordinator) =
            unsafe { *keyed.cast::<(libc::pthread_key_t, *const libc::c_void)>() };
        // SAFETY: a key of this process; `attach_key` is called with the coordinator.
        assert_eq!(unsafe { libc::pthread_setspecific(key, coordinator) }, 0);
        std::ptr::null_mut()
    }
    let config = Config { slow_stop: Duration::from_millis(10), ..Config::default() };
    let coordinator = Coordinator::with_config(config);
    let (tell, told) = mpsc::channel();
    coordinator.on_slow_stop(move |slow| tell.send(slow.clone()).unwrap());
    let me = attached(&coordinator, ());
    let mut keyed: (libc::pthread_key_t, *const libc::c_void) =
        (0, std::ptr::from_ref(&coordinator).cast());
    // SAFETY: the thread has ended before anything that it uses does.
    unsafe {
        assert_eq!(libc::pthread_key_create(&raw mut keyed.0, Some(attach_key)), 0);
        let mut thread = std::mem::zeroed();
        let keyed = std::ptr::from_mut(&mut keyed).cast();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, keyed), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
    assert_eq!(coordinator.threads(), 2);
    for _ in 0..3 {
        assert!(matches!(me.stop(), Err(StopError::ThreadGone { .. })));
    }
    assert_eq!(coordinator.leaked().len(), 1);
    let told: Vec<_> = told.try_iter().filter(|slow| slow.kind == SlowStopKind::Failed).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].stragglers[0].has_ended, "{told:?}");
}

#[test]
fn a_requester_that_waits_already_fails_after_a_leak() {
    let coordinator = Coordinator::new();
    let (started, start) = mpsc::channel();
    let leaker = thread::spawn({
        let coordinator = coordinator.clone();
        move || {
            let me = attached(&coordinator, ());
            started.send(()).unwrap();
            while me.poll() & STOP == 0 {
                thread::yield_now();
            }
            std::mem::forget(me);
        }
    });
    start.recv().unwrap();
    let me = attached(&coordinator, ());
    assert!(matches!(me.stop(), Err(StopError::ThreadGone { .. })));
    leaker.join().unwrap();
}

#[test]
fn a_participant_in_a_thread_local_ends_with_its_thread() {
    thread_local! {
        static ME: RefCell<Option<Participant>> = const { RefCell::new(None) };
    }
    let coordinator = Coordinator::new();
    let body = {
        let coordinator = coordinator.clone();
        move || ME.with(|me| *me.borrow_mut() = Some(attached(&coordinator, ())))
    };
    thread::spawn(body).join().unwrap();
    let me = attached(&coordinator, ());
    assert_eq!(coordinator.threads(), 1);
    drop(me.stop().unwrap());
}

#[test]
fn an_ending_thread_does_not_attach_unwatched() {
    struct Late(Option<Arc<Coordinator>>, mpsc::Sender<Result<(), AttachError>>);
    impl Drop for Late {
        fn drop(&mut self) {
            let me = self.0.take().unwrap().register(());
            self.1.send(me.attach()).unwrap();
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let coordinator = Coordinator::new();
    let (tell, told) = mpsc::channel();
    let body = {
        let coordinator = coordinator.clone();
        move || {
            LATE.with(|late| *late.borrow_mut() = Some(Late(Some(coordinator.clone()), tell)));
            drop(attached(&coordinator, ()));
        }
    };
    thread::spawn(body).join().unwrap();
    // Which destructor comes first is the platform's choice.
    assert!(matches!(told.recv().unwrap(), Ok(()) | Err(AttachError::ThreadEnding)));
    let me = attached(&coordinator, ());
    drop(me.stop().unwrap());
}

#[test]
fn a_stop_inside_a_stop_is_refused() {
    let coordinator = Coordinator::new();
    let me = coordinator.register(());
    assert_eq!(me.stop().unwrap_err(), StopError::NotAttached);
    me.attach().unwrap();
    let stopped = me.stop().unwrap();
    assert!(is_stopping());
    assert_eq!(me.stop().unwrap_err(), StopError::Nested);
    assert!(!me.detach() && !me.park(), "it would leave its own stop");
    assert_eq!(coordinator.register(()).attach(), Err(AttachError::AlreadyAttached));
    drop(stopped);
    assert!(!is_stopping());
    drop(me.stop().unwrap());
}

/// Calls `f` while another thread, whose id it gets, is attached and does not poll. That thread
/// polls once afterwards. Returns whether it found a stop then.
fn beside_a_late_thread(coordinator: &Arc<Coordinator>, f: impl FnOnce(ThreadId)) -> bool {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|s| {
        let late = thread::Builder::new().name("late".into());
        let late = late.spawn_scoped(s, move || {
            let late = attached(coordinator, ());
            late.mark("reading");
            tell.send(late.id()).unwrap();
            ended.recv().unwrap_err();
            late.poll() & STOP != 0
        });
        f(told.recv().unwrap());
        drop(end);
        late.unwrap().join().unwrap()
    })
}

#[test]
fn a_stop_gives_up_at_its_limit_and_leaves_nothing() {
    let slow_stop = Duration::from_secs(60);
    let coordinator = Coordinator::with_config(Config { slow_stop, ..Config::default() });
    let me = attached(&coordinator, ());
    for limit in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(5)] {
        let found = beside_a_late_thread(&coordinator, |id| {
            let error = me.stop_for(limit).unwrap_err();
            let StopError::TimedOut { stragglers } = &error else { panic!("{error}") };
            assert_eq!(stragglers.len(), 1);
            assert_eq!(stragglers[0].thread.id, id);
            assert_eq!(stragglers[0].thread.mark, Some("reading"));
            assert!(!stragglers[0].is_suspended && !stragglers[0].has_ended);
            let text = error.to_string();
            assert!(text.contains("thread 'late' (") && text.contains("detached"), "{text}");
            assert!(me.is_attached() && !is_stopping());
        });
        assert!(!found, "the stop is over");
    }
    let stats = coordinator.stats();
    assert_eq!((stats.stops, stats.failed_stops, stats.threads), (0, 3, 1));
    for limit in [Duration::ZERO, Duration::MAX] {
        assert!(me.stop_for(limit).is_ok(), "no other thread is attached");
    }
}

#[test]
fn a_stop_that_is_reported_before_its_limit_gives_up_all_the_same() {
    let slow_stop = Duration::from_millis(1);
    let coordinator = Coordinator::with_config(Config { slow_stop, ..Config::default() });
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = reports.clone();
    coordinator.on_slow_stop(move |slow| {
        assert_eq!(slow.kind, SlowStopKind::Waiting);
        counted.fetch_add(1, Relaxed);
    });
    let me = attached(&coordinator, ());
    beside_a_late_thread(&coordinator, |_| {
        let error = me.stop_for(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, StopError::TimedOut { .. }), "{error}");
        assert!(reports.load(Relaxed) > 0);
    });
}

#[test]
fn a_stop_with_a_limit_names_a_suspended_thread_and_a_thread_that_is_gone() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|s| {
        let coordinator = &coordinator;
        s.spawn(move || {
            let suspended = coordinator.register(());
            let Suspend::Suspended(_guard) = coordinator.suspend(suspended.id()) else {
                panic!("it is detached")
            };
            tell.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        told.recv().unwrap();
        match me.stop_for(Duration::from_millis(1)) {
            Err(StopError::TimedOut { stragglers }) => assert!(stragglers[0].is_suspended),
            other => panic!("{other:?}"),
        }
        drop(end);
    });
    assert!(me.stop_for(Duration::ZERO).is_ok());
    let leaking = coordinator.clone();
    thread::spawn(move || std::mem::forget(attached(&leaking, ()))).join().unwrap();
    let error = me.stop_for(Duration::ZERO).unwrap_err();
    assert!(matches!(error, StopError::ThreadGone { .. }), "{error}");
}

#[test]
fn a_stop_that_does_not_wait_for_another_is_refused() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    assert!(me.try_stop().is_ok());
    thread::scope(|s| {
        let stopped = me.stop().unwrap();
        // Attached before the stop, the thread would be parked in it.
        let (tell, told) = mpsc::channel();
        let (again, go) = mpsc::channel::<()>();
        let coordinator = &coordinator;
        s.spawn(move || {
            let other = coordinator.register(());
            assert_eq!(other.try_stop().unwrap_err(), StopError::NotAttached);
            assert!(!other.try_attach() && !other.is_attached() && current() == 0);
            tell.send(()).unwrap();
            go.recv().unwrap();
            assert!(other.try_attach() && other.is_attached());
            assert_eq!(current(), other.id().get());
            assert!(!other.try_attach(), "it is attached");
            tell.send(()).unwrap();
            while other.poll() & STOP == 0 {
                thread::yield_now();
            }
            assert_eq!(other.try_stop().unwrap_err(), StopError::Busy);
            assert!(other.is_attached(), "a refused thread has reached no safepoint");
            assert!(other.park());
            assert!(other.try_stop().is_ok());
        });
        told.recv().unwrap();
        drop(stopped);
        again.send(()).unwrap();
        told.recv().unwrap();
        drop(me.stop().unwrap());
        assert!(me.detach());
    });
}

#[test]
fn no_attempt_to_attach_succeeds_where_an_attach_is_refused() {
    let coordinator = Coordinator::new();
    let me = coordinator.register(());
    let guard = traversing();
    assert!(!me.try_attach());
    drop(guard);
    let Suspend::Suspended(guard) = coordinator.suspend(me.id()) else { panic!("detached") };
    assert!(!me.try_attach());
    drop(guard);
    assert!(me.try_attach());
    assert!(!coordinator.register(()).try_attach(), "the thread is attached");
    assert!(me.detach() && me.try_attach());
}

#[test]
fn a_leaked_stop_ends_with_its_participant() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    std::mem::forget(me.stop().unwrap());
    assert_eq!(me.stop().unwrap_err(), StopError::Nested);
    drop(me);
    let me = attached(&coordinator, ());
    drop(me.stop().unwrap());
}

#[test]
fn a_panic_in_a_stop_lets_the_world_go() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let stopped = me.stop().unwrap();
        stopped.threads(|_, ()| panic!("in a stop; nothing is wrong"));
    }));
    assert!(panicked.is_err());
    drop(me.stop().unwrap());
}

#[test]
fn no_safepoint_is_refused_where_none_may_be() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let outer = me.no_safepoint();
    let inner = me.no_safepoint();
    assert_eq!(me.no_safepoint_depth(), 2);
    drop(outer);
    assert_eq!(me.stop().unwrap_err(), StopError::NoSafepoint);
    assert!(!me.park() && !me.detach() && me.is_attached());
    drop(inner);
    assert_eq!(me.no_safepoint_depth(), 0);
    drop(me.stop().unwrap());
    assert!(me.park() && me.detach());
}

#[test]
fn a_traversal_is_not_attached_and_does_not_attach() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, ());
    let outer = traversing();
    let inner = traversing();
    assert_eq!(current(), 0);
    drop(outer);
    assert!(is_traversing());
    assert_eq!(current(), 0);
    assert_eq!(me.attach(), Err(AttachError::Traversing));
    assert_eq!(coordinator.register(()).attach(), Err(AttachError::Traversing));
    assert_eq!(me.stop().unwrap_err(), StopError::NoSafepoint);
    assert!(!me.park() && !me.detach());
    drop(inner);
    assert!(!is_traversing());
    assert_eq!(current(), me.id().get());

    // In a stop, and in a thread that is not attached.
    let stopped = me.stop().unwrap();
    drop(traversing());
    drop(stopped);
    me.detach();
    let guard = traversing();
    assert_eq!(me.attach(), Err(AttachError::Traversing));
    drop(guard);
    me.attach().unwrap();

    // A participant that ends meanwhile does not come back.
    let guard = traversing();
    drop(me);
    drop(guard);
    assert_eq!(current(), 0);
}

#[test]
fn requests_reach_the_threads_they_are_meant_for() {
    let coordinator = Coordinator::new();
    let me = attached(&coordinator, 1);
    let detached = coordinator.register(2);
    assert_eq!(me.poll(), 0);
    assert!(coordinator.poke(detached.id(), 2 | STOP));
    assert_eq!(detached.poll(), 2, "the stop bit is not the user's");
    assert_eq!(coordinator.poke_attached(4), 1);
    assert_eq!((me.poll(), detached.poll()), (4, 2));
    me.raise(8);
    assert_eq!(me.take_requests(4), 4);
    assert_eq!(me.take_requests(!0), 8);
    assert_eq!(me.poll(), 0);
    let id = detached.id();
    assert_eq!(coordinator.with_data(id, |n| *n), Some(2));
    drop(detached);
    assert!(!coordinator.poke(id, 2));
    assert_eq!(coordinator.with_data(id, |n| *n), None);
    assert!(matches!(coordinator.suspend(id), Suspend::Ended));
}

#[test]
fn a_suspended_thread_waits_to_attach_and_to_end() {
    let coordinator = Coordinator::new();
    for attach in [true, false] {
        let (told, id) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::spawn({
            let coordinator = coordinator.clone();
            move || {
                let me = coordinator.register(AtomicBool::new(false));
                told.send(me.id()).unwrap();
                gone.recv().unwrap();
                if attach {
                    me.attach().unwrap();
                    assert!(me.data().load(Relaxed), "attached while it was suspended");
                }
            }
        });
        let id = id.recv().unwrap();
        let Suspend::Suspended(guard) = coordinator.suspend(id) else { panic!("it is detached") };
        assert_eq!(guard.id(), id);
        let me = coordinator.register(AtomicBool::new(false));
        assert_eq!(me.attach(), Err(AttachError::Suspending));
        go.send(()).unwrap();
        for _ in 0..100 {
            thread::yield_now();
        }
        assert_eq!(coordinator.threads(), 2, "it is still there");
        guard.store(true, Relaxed);
        drop(guard);
        thread.join().unwrap();
        me.attach().unwrap();
    }
    let me = attached(&coordinator, AtomicBool::new(false));
    assert!(matches!(coordinator.suspend(me.id()), Suspend::Attached));
}

#[test]
fn a_thread_can_end_in_its_own_hands() {
    let coordinator = Coordinator::new();
    let me = coordinator.register(7);
    let Suspend::Suspended(guard) = coordinator.suspend(me.id()) else { panic!("it is detached") };
    drop(me);
    assert_eq!(*guard, 7);
    drop(guard);
    attached(&coordinator, 8);
}

#[test]
fn one_suspension_at_a_time() {
    let coordinator = Coordinator::new();
    let (a, b) = (coordinator.register(()), coordinator.register(()));
    let me = attached(&coordinator, ());
    let guard = coordinator.suspend(a.id());
    assert!(
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(
            coordinator.suspend(b.id())
        )))
        .is_err()
    );
    assert_eq!(me.stop().unwrap_err(), StopError::NoSafepoint);
    drop(guard);
    assert!(matches!(coordinator.suspend(b.id()), Suspend::Suspended(_)));
    let stopped = me.stop().unwrap();
    assert!(
        matches!(coordinator.suspend(a.id()), Suspend::Suspended(_)),
        "in its own stop one may"
    );
    drop(stopped);
}

#[test]
fn payloads_are_dropped_without_the_lock() {
    struct Payload(std::sync::Weak<Coordinator<Self>>);
    impl Drop for Payload {
        fn drop(&mut self) {
            // Would wait for ever for a lock that its own thread holds.
            let _ = self.0.upgrade().map(|c| c.threads());
        }
    }
    let coordinator = Coordinator::new();
    let me = coordinator.register(Payload(Arc::downgrade(&coordinator)));
    let id = me.id();
    drop(me);
    assert!(coordinator.with_data(id, |_| ()).is_none());
}

#[cfg(all(unix, not(miri)))]
#[test]
fn a_forked_child_has_one_thread_and_a_world() {
    let coordinator = Coordinator::new();
    let done = AtomicBool::new(false);
    let status = thread::scope(|s| {
        for n in 0..3 {
            let (coordinator, done) = (&coordinator, &done);
            s.spawn(move || {
                let me = attached(coordinator, n);
                while !done.load(Relaxed) {
                    if me.poll() & STOP != 0 {
                        me.park();
                    }
                    me.detach();
                    me.attach().unwrap();
                }
            });
        }
        let me = attached(&coordinator, 3);
        let other = coordinator.register(4);
        while coordinator.threads() < 5 {
            thread::yield_now();
        }
        let mut statuses = Vec::new();
        for _ in 0..20 {
            let guard = coordinator.prepare_fork(&me).unwrap();
            // SAFETY: the child calls only the coordinator, whose lock this thread holds, and the
            // allocator, which the system's fork handlers keep usable. It leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let ended = guard.child();
                let mut payloads: Vec<_> = ended.iter().map(|e| *e.data()).collect();
                payloads.sort_unstable();
                let mut ok = payloads == [0, 1, 2] && coordinator.threads() == 2;
                for _ in 0..3 {
                    ok &= me.stop().is_ok_and(|stopped| stopped.requester() == me.id());
                    ok &= me.detach()
                        && other.attach().is_ok()
                        && other.detach()
                        && me.attach().is_ok();
                }
                // The child's one thread has another number at the system than in the parent.
                let os_thread = coordinator.thread(me.id()).and_then(|thread| thread.os_thread);
                ok &= !cfg!(target_os = "linux") || os_thread == Some(std::process::id().into());
                ok &= ended.iter().all(|e| coordinator.with_data(e.id(), |_| ()).is_none());
                // SAFETY: ends the process, without any destructors.
                unsafe { libc::_exit(if ok { 0 } else { 1 }) };
            }
            guard.parent();
            let mut status = -1;
            // SAFETY: `status` is there to be written.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            statuses.push(status);
        }
        done.store(true, Relaxed);
        statuses
    });
    assert_eq!(status, [0; 20]);
    assert_eq!(coordinator.threads(), 0);
}

/// Threads that waited for the end of the fork's stop must run before the next stop. The
/// child has none of them.
#[cfg(all(unix, not(miri)))]
#[test]
fn a_child_that_calls_parent_has_lost_its_other_threads_all_the_same() {
    let coordinator = Coordinator::new();
    let done = AtomicBool::new(false);
    let statuses = thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let me = attached(&coordinator, Arc::new(()));
                while !done.load(Relaxed) {
                    me.park();
                }
            });
        }
        let me = attached(&coordinator, Arc::new(()));
        while coordinator.stats().attached < 3 {
            thread::yield_now();
        }
        let statuses = [false, true].map(|drops| {
            let guard = coordinator.prepare_fork(&me).unwrap();
            // SAFETY: the child calls only the coordinator, whose lock this thread holds, and the
            // allocator, which the system's fork handlers keep usable. It leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: a child that hangs is killed.
                unsafe { libc::alarm(20) };
            }
            if drops {
                drop(guard)
            } else {
                guard.parent()
            }
            if pid == 0 {
                let ok = coordinator.threads() == 1 && me.stop().is_ok() && me.stop().is_ok();
                // SAFETY: ends the process, without any destructors.
                unsafe { libc::_exit(i32::from(!ok)) };
            }
            let mut status = -1;
            // SAFETY: `status` is there to be written.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            status
        });
        done.store(true, Relaxed);
        statuses
    });
    assert_eq!(statuses, [0; 2]);
}

#[test]
fn a_fork_is_prepared_by_ones_own_participant() {
    let (here, there) = (Coordinator::new(), Coordinator::<()>::new());
    let me = attached(&here, ());
    assert!(matches!(there.prepare_fork(&me), Err(StopError::NotAttached)));
    here.prepare_fork(&me).unwrap().parent();
    drop(me.stop().unwrap());
}

#[cfg(all(unix, not(miri)))]
#[test]
fn a_fork_guard_knows_the_process_that_prepared_the_fork() {
    let coordinator = Coordinator::new();
    let (done, parked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|s| {
        s.spawn(|| {
            let me = attached(&coordinator, ());
            while !done.load(Relaxed) {
                if me.poll() & STOP != 0 {
                    me.park();
                    parked.fetch_add(1, Relaxed);
                }
            }
        });
        let me = attached(&coordinator, ());
        while coordinator.threads() < 2 {
            thread::yield_now();
        }
        for _ in 0..100 {
            let guard = coordinator.prepare_fork(&me).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(|| guard.child().len())).is_err());
            assert_eq!(coordinator.threads(), 2);
        }
        done.store(true, Relaxed);
        me.detach();
    });
    assert!(parked.load(Relaxed) > 0);
    assert_eq!(coordinator.threads(), 0);
}
