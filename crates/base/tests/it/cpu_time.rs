//! In a process of its own, where nothing else computes.

#![cfg(unix)]

use std::{hint::black_box, thread, time::Duration};

use omma_base::cpu_time::of_process;
use rustix::time::{ClockId, clock_gettime};

fn spent(work: impl FnOnce()) -> f64 {
    let before = of_process().unwrap();
    work();
    of_process().unwrap() - before
}

/// Until the thread has had so much of a core, however busy the machine is.
fn compute(share: Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let begin = now();
    while now() - begin < share {
        black_box((0..1000_u64).sum::<u64>());
    }
}

#[test]
fn work_of_all_threads_counts_and_waiting_does_not() {
    let share = Duration::from_millis(60);
    let working = spent(|| {
        thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| compute(share)))));
    });
    assert!(working >= 0.12, "two threads have worked for 60 ms each: {working}");
    // A busy machine makes the process wait, which costs it nothing but the rest of a slice.
    let waiting = spent(|| thread::sleep(Duration::from_millis(200)));
    assert!(waiting < working / 2.0, "waiting took {waiting}, working {working}");
}
