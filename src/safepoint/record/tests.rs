//! Tests of the ids of threads.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::*;

/// In a process of its own, because it uses up the ids of the process.
#[test]
fn when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on() {
    const CHILD: &str = "STANDSTILL_IDS_CHILD";
    const NAME: &str = "safepoint::record::tests::\
        when_the_ids_are_used_up_attaching_is_an_error_and_others_go_on";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
        let output = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output();
        let output = output.expect("a child");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let heap = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
    let second = crate::Heap::builder().reserve(1 << 30).workers(1).build().expect("a heap");
    let mut m = heap.attach();
    let kept = m.alloc(7u64);
    LAST_ID.store(ThreadId::MAX - 1, std::sync::atomic::Ordering::Relaxed);
    // The last id works.
    std::thread::scope(|scope| {
        m.detach(|| {
            let last = scope.spawn(|| {
                let _attached = heap.attach();
                assert_eq!(*kept, 7);
            });
            last.join().expect("the last id");
        });
    });
    for _ in 0..3 {
        let error = m.detach(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| heap.try_attach().err()).join().expect("no panic")
            })
        });
        assert_eq!(error, Some(crate::AttachError::NoThreadIds));
    }
    // A heap can end without an id. It reports that it did not collect.
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    second.on_unraisable(move |unraisable| heard.lock().unwrap().push(format!("{unraisable:?}")));
    m.detach(|| drop(second));
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("no thread ids are left"), "{told:?}");
    // This thread goes on, and a stop does not wait for the refused threads.
    assert_eq!(m.collect().abandoned, None);
    assert_eq!(*kept, 7);
    m.verify().expect("a whole heap");
}
