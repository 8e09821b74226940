//! The conformance kit: it passes correct models, and names the rule that a broken one breaks, and
//! the method.

mod loom_model;
mod seam;
mod toy;

use standstill_model_check::{Check, Rule};
use toy::{Fault, checked};

/// A fifth of the random programs of a full run.
fn programs(full: usize) -> Check {
    let is_full = std::env::var_os("STANDSTILL_FULL").is_some();
    Check::new().programs(if is_full { full } else { full / 5 })
}

#[test]
fn a_correct_model_passes() {
    let report = checked(Fault::None, &programs(300)).unwrap();
    println!("{report}");
    // These are parts of the model in `seam`.
    assert_eq!(report.skipped, seam::PARTS);
    assert!(report.collections > 100 && report.objects > 1000);
}

#[test]
fn each_fault_is_named() {
    let mut wrong = Vec::new();
    for (fault, rule, method) in FAULTS {
        match checked(*fault, &Check::new()) {
            Ok(_) => wrong.push(format!("{fault:?}: not found")),
            Err(broken) if (broken.rule, broken.method) == (*rule, *method) => {
                println!("{fault:?}\n{broken}\n");
            }
            Err(broken) => wrong.push(format!("{fault:?}\n{broken}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_panic_of_each_method_is_named() {
    for method in METHODS {
        let broken = checked(Fault::Panics(method), &Check::new().threads(1)).unwrap_err();
        // Only the heap can make what `judge` gets. It names the phase.
        let place = if *method == "judge" { "clear" } else { method };
        assert_eq!((broken.rule, broken.method), (Rule::Panics, place), "{broken}");
        assert!(broken.what.contains("on purpose"), "{broken}");
    }
}

/// Only programs with several threads show it.
#[test]
fn counts_that_race_are_found() {
    assert!(checked(Fault::CountsRace, &programs(100).threads(1)).is_ok());
    let broken = checked(Fault::CountsRace, &Check::new()).unwrap_err();
    println!("{broken}");
    assert!(matches!(broken.rule, Rule::Counts | Rule::Memory), "{broken}");
    assert!(broken.program[0].contains("3 threads"), "{broken}");
}

/// The methods that the kit calls.
const METHODS: &[&str] = &[
    "local",
    "private",
    "attached",
    "count",
    "check",
    "traverse",
    "claim_ref",
    "claim_ref_for_any",
    "release",
    "clear",
    "clearing",
    "cleared",
    "has_finalizer",
    "finalize",
    "prepare",
    "pending",
    "merge",
    "destroy_merged",
    "has_weak",
    "callbacks",
    "take_callbacks",
    "call_back",
    "clear_weak",
    "has_legacy",
    "legacy",
    "judge",
    "type_name",
    "resumed",
    "after_clear",
    "refused",
    "ending",
];

/// Each fault, with the rule and the method that the kit names. Of a merge the heap checks the
/// result, so the method is `merge`.
const FAULTS: &[(Fault, Rule, &str)] = &[
    (Fault::CountTooLow, Rule::Counts, "count"),
    (Fault::CountTooHigh, Rule::Counts, "count"),
    (Fault::CountWithoutOutside, Rule::Counts, "count"),
    (Fault::ClaimCountsNothing, Rule::Counts, "claim_ref"),
    (Fault::ClaimCountsTwice, Rule::Counts, "claim_ref"),
    (Fault::ClaimForAnyCountsNothing, Rule::Counts, "claim_ref_for_any"),
    (Fault::ReleaseDropsNothing, Rule::Counts, "release"),
    (Fault::ReleaseDropsTwice, Rule::Counts, "release"),
    (Fault::FreesEarly, Rule::Memory, "Specimen::drop_ref"),
    (Fault::FreesTwice, Rule::Memory, "Specimen::drop_ref"),
    (Fault::FreesNever, Rule::Memory, "Specimen::drop_ref"),
    (Fault::TraverseLowersCounts, Rule::Stop, "traverse"),
    (Fault::ClearWeakFrees, Rule::Stop, "clear_weak"),
    (Fault::TraversesTooFew, Rule::Traversal, "traverse"),
    (Fault::TraversesTwice, Rule::Traversal, "traverse"),
    (Fault::TraversesTheDead, Rule::Traversal, "traverse"),
    (Fault::TraversesOthers, Rule::Traversal, "traverse"),
    (Fault::TraversesOnlySometimes, Rule::Traversal, "traverse_each"),
    (Fault::TraverseSaysUnreadable, Rule::Traversal, "traverse"),
    (Fault::TraverseEachSkips, Rule::Traversal, "traverse_each"),
    (Fault::TraverseEachDoesNothing, Rule::Panics, "traverse_each"),
    (Fault::TraverseEachMixes, Rule::Traversal, "traverse_each"),
    (Fault::PrefetchReports, Rule::Traversal, "prefetch_each"),
    (Fault::MergeLeavesPending, Rule::Merge, "merge"),
    (Fault::MergeForgetsTheDead, Rule::Merge, "merge"),
    (Fault::MergeReportsTheLiving, Rule::Merge, "merge"),
    (Fault::MergeReportsTwice, Rule::Limits, "merge"),
    (Fault::DestroyMergedDoesNothing, Rule::Memory, "destroy_merged"),
    (Fault::PendingTooLow, Rule::Limits, "merge"),
    (Fault::CallbacksTooLow, Rule::Limits, "callbacks"),
    (Fault::SafepointInPrepare, Rule::NoSafepoint, "prepare"),
    (Fault::DetachInFinalize, Rule::NoSafepoint, "finalize"),
    (Fault::StopInClear, Rule::NoSafepoint, "clear"),
    (Fault::ClearsNothing, Rule::Clear, "clear"),
    (Fault::ClearsWithoutDropping, Rule::Counts, "clear"),
    (Fault::DropsWithoutClearing, Rule::Clear, "clear"),
    (Fault::ClearsOthers, Rule::Clear, "clear"),
    (Fault::ClearsAllButCycles, Rule::Clear, "clear"),
    (Fault::ClearedDropsNothing, Rule::Counts, "clear"),
    (Fault::FinalizesTwice, Rule::Finalizer, "finalize"),
    (Fault::FinalizesNever, Rule::Finalizer, "finalize"),
    (Fault::HasFinalizerAlways, Rule::Finalizer, "has_finalizer"),
    (Fault::HasFinalizerNever, Rule::Finalizer, "has_finalizer"),
    (Fault::RisesUncounted, Rule::Counts, "finalize"),
    (Fault::FinalizerLeaksAfterPanic, Rule::Counts, "finalize"),
    (Fault::ClearWeakDoesNothing, Rule::Weak, "clear_weak"),
    (Fault::UpgradesTheDead, Rule::Weak, "Specimen::upgrade"),
    (Fault::CallsBackTwice, Rule::Weak, "call_back"),
    (Fault::CallsBackNever, Rule::Weak, "call_back"),
    (Fault::TakesNoCallbacks, Rule::Weak, "take_callbacks"),
    (Fault::TakesCallbacksAndLeavesWeak, Rule::Weak, "take_callbacks"),
    (Fault::HasWeakNever, Rule::Weak, "has_weak"),
    (Fault::LegacyLies, Rule::Answers, "legacy"),
    (Fault::HasLegacyNever, Rule::Answers, "has_legacy"),
    (Fault::ImmortalIsCounted, Rule::Answers, "count"),
    (Fault::IsImmortalLies, Rule::Answers, "is_immortal"),
    (Fault::ImmortalForAll, Rule::Answers, "count"),
    (Fault::CheckComplains, Rule::Answers, "check"),
    (Fault::AllocPanicsWithoutMemory, Rule::Refusal, "Specimen::alloc"),
    (Fault::AllocLeaksWithoutMemory, Rule::Refusal, "Specimen::alloc"),
    (Fault::RefusedLies, Rule::Refusal, "refused"),
    (Fault::PublishesUntracked, Rule::Answers, "Specimen::alloc"),
];
