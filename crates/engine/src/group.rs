//! Decoding steps of several recordings, run together so that the weights are read once for all of them.
//!
//! Each recording is transcribed on a thread of its own by [`crate::Engine::transcribe_in`]. While it decodes it has a
//! [`Seat`] in the group; a step runs when everyone who has a seat has brought a token, on whichever thread came last.
//! Sessions join when their prefill is done and leave when their window ends, between two steps. Since a session's numbers
//! do not depend on who steps along ([`Decoder::step_batch`]), neither does its text.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use wnw_kv::KvStore;
use wnw_model::{Decoder, ModelError, StepBuffers, StepSession};

/// Recordings whose steps run together; made by [`crate::Engine::step_group`].
pub struct StepGroup<'a> {
    decoder: &'a Decoder,
    /// Held by whoever encodes and prefills, so that the memory of that is there once.
    prefill: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Those who have a seat.
    seated: usize,
    next_seat: u64,
    /// What those brought whose step has not run yet.
    waiting: Vec<Part>,
    /// What was not taken back yet.
    done: Vec<Part>,
    buffers: Option<StepBuffers>,
    running: bool,
    /// Seats whose step ended in a panic: what they brought is lost.
    lost: Vec<u64>,
}

/// One session's part in a step, which owns everything while it runs.
struct Part {
    seat: u64,
    token: u32,
    position: usize,
    store: KvStore,
    logits: Vec<f32>, // (vocab_size)
    failed: Option<ModelError>,
}

/// A panic elsewhere leaves whole values behind, or [`State::lost`] says otherwise.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> StepGroup<'a> {
    /// A group without members.
    pub(crate) fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, prefill: Mutex::new(()), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for one's turn to encode and prefill.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.prefill)
    }

    fn step(
        &self,
        seat: u64,
        (token, position): (u32, usize),
        store: &mut KvStore,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let (own, room) = (std::mem::take(store), std::mem::take(logits));
        let mut state = lock(&self.state);
        state.waiting.push(Part { seat, token, position, store: own, logits: room, failed: None });
        loop {
            if let Some(at) = state.done.iter().position(|part| part.seat == seat) {
                let part = state.done.swap_remove(at);
                (*store, *logits) = (part.store, part.logits);
                return part.failed.map_or(Ok(()), Err);
            }
            if let Some(at) = state.lost.iter().position(|lost| *lost == seat) {
                state.lost.swap_remove(at);
                return Err(ModelError::Input("a step of the batch ended in a panic".into()));
            }
            if !state.running && state.waiting.len() == state.seated {
                state = self.run(state);
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Runs the step of all who wait, with the state unlocked meanwhile.
    fn run<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.running = true;
        let mut parts = std::mem::take(&mut state.waiting);
        let mut buffers = state.buffers.take().unwrap_or_else(|| self.decoder.step_buffers());
        drop(state);
        let whole = Whole(self, parts.iter().map(|part| part.seat).collect());
        // One of the pool's threads runs the step, so that its many products need not be handed over one by one.
        rayon::scope(|_| {
            let mut sessions: Vec<StepSession<'_>> = parts
                .iter_mut()
                .map(|part| StepSession::new(part.token, part.position, &mut part.store))
                .collect();
            let logits = self.decoder.step_batch(&mut sessions, &mut buffers);
            let failed: Vec<_> = sessions.into_iter().map(|session| session.failed).collect();
            let width = logits.len() / parts.len();
            for ((part, failed), logits) in parts.iter_mut().zip(failed).zip(logits.chunks_exact(width)) {
                part.failed = failed;
                part.logits.clear();
                part.logits.extend_from_slice(logits);
            }
        });
        whole.reached();
        let mut state = lock(&self.state);
        state.running = false;
        state.buffers = Some(buffers);
        state.done.append(&mut parts);
        self.changed.notify_all();
        state
    }
}

/// Tells those in a step, by their seats, when it does not come to its end.
struct Whole<'s, 'a>(&'s StepGroup<'a>, Vec<u64>);

impl Whole<'_, '_> {
    /// The step has come to its end: nobody need be told.
    fn reached(mut self) {
        self.1.clear();
    }
}

impl Drop for Whole<'_, '_> {
    fn drop(&mut self) {
        if self.1.is_empty() {
            return;
        }
        let mut state = lock(&self.0.state);
        state.running = false;
        state.lost.append(&mut self.1);
        drop(state);
        self.0.changed.notify_all();
    }
}

/// The place of a session that decodes: alone, or in a group.
pub(crate) struct Seat<'a> {
    decoder: &'a Decoder,
    place: Place<'a>,
}

enum Place<'a> {
    Alone(Box<StepBuffers>),
    Among { group: &'a StepGroup<'a>, seat: u64, logits: Vec<f32> },
}

impl<'a> Seat<'a> {
    /// Joins the group, if there is one.
    pub fn new(decoder: &'a Decoder, group: Option<&'a StepGroup<'a>>) -> Self {
        let Some(group) = group else {
            return Self { decoder, place: Place::Alone(Box::new(decoder.step_buffers())) };
        };
        let mut state = lock(&group.state);
        state.seated += 1;
        state.next_seat += 1;
        let seat = state.next_seat;
        Self { decoder, place: Place::Among { group, seat, logits: Vec::new() } }
    }

    /// As [`Decoder::step`], at once or with the others.
    pub fn step(&mut self, token: u32, position: usize, store: &mut KvStore) -> Result<&[f32], ModelError> {
        match &mut self.place {
            Place::Alone(buffers) => self.decoder.step(token, position, store, buffers),
            Place::Among { group, seat, logits } => {
                group.step(*seat, (token, position), store, logits)?;
                Ok(logits)
            }
        }
    }
}

impl Drop for Seat<'_> {
    /// Leaves: those who wait may be complete now.
    fn drop(&mut self) {
        if let Place::Among { group, .. } = &self.place {
            lock(&group.state).seated -= 1;
            group.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wnw_model::WeightDtype;
    use wnw_model::shapes::ModelShape;

    #[test]
    fn a_step_that_ends_in_a_panic_ends_its_sessions_and_no_later_ones() {
        let shape = ModelShape::find("tiny").unwrap();
        let decoder = Decoder::random(&shape.decoder, WeightDtype::Bf16, 1, |_, _| {}).unwrap();
        let group = StepGroup::new(&decoder);
        // What is in the step does not matter: a store without a prompt is refused, which is an answer too.
        let step = |mut seat: Seat<'_>| {
            let mut store = KvStore::new(decoder.kv_shape(), Default::default(), &Default::default());
            seat.step(1, 0, &mut store).map(|_| ()).map_err(|e| e.to_string())
        };
        let [waiting, later] = [(); 2].map(|()| Seat::new(&decoder, Some(&group)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| step(waiting));
            let taken = loop {
                let mut state = lock(&group.state);
                if !state.waiting.is_empty() {
                    state.running = true;
                    break std::mem::take(&mut state.waiting);
                }
                drop(state);
                std::thread::yield_now();
            };
            drop(Whole(&group, taken.iter().map(|part| part.seat).collect()));
            assert!(waiting.join().unwrap().unwrap_err().contains("ended in a panic"));
        });
        let panicked = |result: Result<(), String>| result.is_err_and(|message| message.contains("panic"));
        assert!(!panicked(step(later)));
        assert!(!panicked(step(Seat::new(&decoder, Some(&group)))));
    }
}
