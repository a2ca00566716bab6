//! The order of the queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Receiver};

use super::*;
use crate::model::cache::SequenceCache;
use crate::sample::SamplingParams;
use crate::sample::tests::plain;
use crate::schedule::pace::{QueuePace, QueuePlace};
use crate::schedule::request::{Output, OutputSender, StopRules};

fn place() -> (Arc<QueuePlace>, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(2));
    let permit = || Arc::clone(&permits).try_acquire_owned().unwrap();
    let place = QueuePlace::new(Arc::new(QueuePace::new(Instant::now())), [permit(), permit()]);
    (Arc::new(place), permits)
}

/// A call of some choices, whose first token names the call.
fn submit(queue: &mut Queue, name: u32, count: usize, priority: i64) -> Receiver<Output> {
    let (sender, outputs) = mpsc::channel(count + 1);
    let aborted = Arc::new(AtomicBool::new(false));
    let choice = |index| {
        let request = Request {
            index,
            prompt: [name, index as u32].into(),
            params: SamplingParams { seed: 0, ..plain() },
            stops: Arc::new(StopRules::default()),
            priority,
            cache_salt: None,
            attempt: None,
            prompt_logprobs: None,
            scored_from: 0,
            routed_experts: false,
            aborted: Arc::clone(&aborted),
            adapter: None,
        };
        let last = sender.clone().try_reserve_owned().unwrap();
        (request, OutputSender { sender: sender.clone(), last })
    };
    queue.push(Submission { choices: (0..count).map(choice).collect(), place: place().0 });
    outputs
}

/// Removes the next choice. Returns its call and its index.
fn next(queue: &mut Queue) -> Option<(u32, u32)> {
    let before = queue.len();
    let choice = queue.pop_new()?;
    assert_eq!(queue.len() + 1, before);
    Some((choice.request.prompt[0], choice.request.prompt[1]))
}

#[test]
fn calls_take_turns_and_priorities_go_before() {
    let mut queue = Queue::default();
    let calls = [(1, 3, 0), (2, 1, 0), (3, 2, -1), (4, 2, 0)];
    let _outputs = calls.map(|(name, count, priority)| submit(&mut queue, name, count, priority));
    let order: Vec<(u32, u32)> = std::iter::from_fn(|| next(&mut queue)).collect();
    assert_eq!(order, [(3, 0), (3, 1), (1, 0), (2, 0), (4, 0), (1, 1), (4, 1), (1, 2)]);
    assert!(queue.next().is_none() && queue.len() == 0);
}

#[test]
fn those_that_ran_go_on_first_in_the_order_in_which_they_began() {
    let mut queue = Queue::default();
    let _outputs = submit(&mut queue, 1, 4, 0);
    let mut begin = |started| {
        let choice = queue.pop_new().unwrap();
        Sequence::new(choice, SequenceCache::default(), started)
    };
    let (first, second) = (begin(5), begin(9));
    queue.requeue(second);
    queue.requeue(first);
    assert!(matches!(queue.next(), Some(NextChoice::Preempted(sequence)) if sequence.started == 5));
    assert_eq!(queue.pop_preempted().map(|sequence| sequence.started), Some(5));
    assert_eq!(queue.pop_preempted().map(|sequence| sequence.started), Some(9));
    assert!(queue.pop_preempted().is_none());
    assert!(matches!(queue.next(), Some(NextChoice::New(request)) if request.index == 2));
}

#[test]
fn the_first_call_that_has_nothing_is_found_wherever_it_stands() {
    let mut queue = Queue::default();
    let _outputs = [1, 2, 3].map(|name| submit(&mut queue, name, 2, 0));
    // Calls are numbered as they come.
    let found = queue.find_call(|call| call < 3).unwrap();
    let (priority, index) = (found.priority, found.index);
    assert_eq!((priority, index, found.request.prompt[0]), (0, 2, 3));
    assert_eq!(queue.pop_of_call(priority, index).unwrap().call, 3);
    assert_eq!(next(&mut queue), Some((1, 0)));
    assert!(queue.find_call(|_| true).is_none());
}

#[test]
fn calls_that_are_left_or_told_to_end_are_gone() {
    let mut queue = Queue::default();
    let left = submit(&mut queue, 1, 3, 0);
    let mut aborted = submit(&mut queue, 2, 2, 1);
    let _kept = submit(&mut queue, 3, 1, 1);
    drop(left);
    if let Some(call) = queue.levels.get(&1).and_then(|level| level.calls.front()) {
        call.choices[0].request.aborted.store(true, Ordering::Relaxed);
    }
    assert_eq!(queue.drop_abandoned(), 5);
    assert_eq!(queue.len(), 1);
    for _ in 0..2 {
        let end = aborted.try_recv().unwrap().end.unwrap();
        assert_eq!(end.finish, FinishReason::Aborted);
    }
    assert_eq!(next(&mut queue), Some((3, 0)));
}

#[test]
fn a_place_is_given_back_with_the_last_choice() {
    let mut queue = Queue::default();
    let (place, permits) = place();
    let outputs = submit(&mut queue, 1, 2, 0);
    // The place of the call itself stays with its choices.
    for level in queue.levels.values_mut() {
        for choice in level.calls.iter_mut().flat_map(|call| &mut call.choices) {
            choice._place = Arc::clone(&place);
        }
    }
    drop(place);
    assert_eq!(permits.available_permits(), 0);
    drop(queue.pop_new());
    assert_eq!(permits.available_permits(), 0);
    drop(queue.pop_new());
    assert_eq!(permits.available_permits(), 2);
    drop(outputs);
}
