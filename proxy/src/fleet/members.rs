//! All engines, and the choice of one for a call.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use episode::AttemptId;
use http::tls;
use rustls::ClientConfig;
use tokio::sync::{Notify, RwLock, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::engine::{Engine, EngineCall, EngineState};
use super::fence::Fence;
use super::pick::{Candidate, LoadBound, for_thread, least_loaded};
use super::resolve::{Resolved, resolve};
use super::stall::LongestWait;
use super::threads::{Thread, Threads};
use crate::bounds::{
    ABSORBED_CALLS_MAX, ENGINE_WAIT, ENGINE_WAITING_MAX, HEAD_WAIT_FACTOR, ROOM_WAIT,
};
use crate::config::spec::{EngineSpec, InvalidEngine, check_all};
use crate::config::{Config, InvalidSetting};
use crate::error::CallError;
use crate::upstream::server::{InferenceServer, ServerSpec};

/// All engines of a proxy.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(super) config: Config,
    tls: ClientConfig,
    engines: Mutex<Arc<Vec<Arc<Engine>>>>,
    sources: tokio::sync::Mutex<Sources>,
    next_id: AtomicU64,
    /// True once there were several engines, or may be.
    is_many: AtomicBool,
    pub(super) threads: Threads,
    pub(super) longest_wait: LongestWait,
    pub(crate) fence: Fence,
    /// Held for writing while weights are pushed, so that nobody takes the labels of then.
    pub(crate) pushing: RwLock<PushState>,
    /// Told when an engine may have room.
    pub(super) room: Arc<Notify>,
    /// Told when an engine is to be looked at.
    pub(super) look: Arc<Notify>,
    /// Calls that wait for an engine.
    waiting: Semaphore,
    /// Calls that wait because an engine answered 429 or 503.
    absorbing: Semaphore,
}

/// A push of weights in several requests.
#[derive(Debug, Default)]
pub(crate) struct PushState {
    /// True between its first and its last request.
    pub(crate) is_open: bool,
}

/// The engines as they were named.
#[derive(Debug, Default)]
struct Sources {
    /// By an option, or on the control listener.
    named: Vec<EngineSpec>,
    /// In the file that is watched.
    filed: Vec<EngineSpec>,
}

impl Sources {
    fn all(&self) -> Vec<EngineSpec> {
        self.named.iter().chain(&self.filed).cloned().collect()
    }
}

/// What became of the choice for a call.
enum PlaceChoice {
    Placed(EngineCall),
    /// All that could take it are full.
    Full,
    /// None takes calls.
    None,
}

/// The reason for which the engines are not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// One cannot be used, or not beside the others.
    #[error(transparent)]
    Invalid(#[from] InvalidEngine),
    /// A setting of one cannot be used.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// None has this name.
    #[error("there is no upstream `{0}`")]
    Unknown(String),
    /// The one of this name is the last.
    #[error("`{0}` is the last upstream; add another one first")]
    Last(String),
}

impl Fleet {
    /// The engines of a configuration.
    ///
    /// # Errors
    /// [`InvalidSetting`] if an address, a certificate or the key cannot be used.
    pub(crate) async fn start(config: &Config) -> Result<Self, ChangeError> {
        let mut named = config.fleet.engines.clone();
        if named.is_empty() {
            let only = EngineSpec::from(config.upstream.clone());
            named.push(EngineSpec { dialect: config.dialect, ..only });
        }
        check_all(&named)?;

        let fleet = Self {
            config: config.clone(),
            tls: tls::client_config(&config.upstream_ca).map_err(InvalidSetting::from)?,
            engines: Mutex::default(),
            sources: tokio::sync::Mutex::new(Sources { named, filed: Vec::new() }),
            next_id: AtomicU64::default(),
            is_many: AtomicBool::new(config.fleet.is_open),
            threads: Threads::default(),
            longest_wait: LongestWait::default(),
            fence: Fence::new(config.fleet.fences_versions),
            pushing: RwLock::default(),
            room: Arc::default(),
            look: Arc::default(),
            waiting: Semaphore::new(ENGINE_WAITING_MAX),
            absorbing: Semaphore::new(ABSORBED_CALLS_MAX),
        };
        fleet.refresh().await?;
        Ok(fleet)
    }

    /// All engines, in the order in which they were named.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Engine>>> {
        Arc::clone(&self.guard())
    }

    /// An engine that takes calls, or else any.
    pub(crate) fn any(&self) -> Arc<Engine> {
        let all = self.all();
        let open = all.iter().find(|engine| self.is_open(engine));
        Arc::clone(open.or_else(|| all.first()).expect("the last engine is never removed"))
    }

    /// The name of a route that an agent names by the path of an engine's address.
    pub(crate) fn name_of(&self, path: &str) -> Option<String> {
        self.all().iter().find_map(|engine| engine.spec.upstream.base.without(path))
    }

    /// Asks engines that are called with our own key what they are, before anybody calls them.
    pub(crate) async fn probe_early(&self) {
        let mut probes = JoinSet::new();
        for engine in self.all().iter() {
            let server = Arc::clone(&engine.server);
            probes.spawn(async move { server.probe.probe_early().await });
        }
        while probes.join_next().await.is_some() {}
    }

    /// True if there are several engines, or were. One upstream alone is treated as one.
    pub(crate) fn is_many(&self) -> bool {
        self.is_many.load(Ordering::Relaxed)
    }

    /// True if an engine takes new calls.
    pub(crate) fn is_open(&self, engine: &Engine) -> bool {
        engine.state(&self.fence) == EngineState::Up
    }

    /// The state of an engine as others are told it.
    pub(crate) fn state(&self, engine: &Engine) -> EngineState {
        match engine.state(&self.fence) {
            EngineState::Up if self.stalled_because(engine).is_some() => EngineState::Stalled,
            state => state,
        }
    }

    /// The reason why an engine gets no new threads though it answers its looks, if it gets none. A
    /// call may wait three times as long as any that was answered of late, wherever it was.
    pub(crate) fn stalled_because(&self, engine: &Engine) -> Option<&'static str> {
        let (now, least) = (Instant::now().into_std(), self.config.fleet.stalled_after);
        let patience = least.max(self.longest_wait.get(now) * HEAD_WAIT_FACTOR);
        engine.signs.stalled_because((!least.is_zero()).then_some(patience), now)
    }

    /// Threads on an engine.
    pub(crate) fn threads_on(&self, engine: &Engine) -> usize {
        self.threads.counts().get(&engine.id).copied().unwrap_or(0)
    }

    /// Forgets the threads of an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        self.threads.forget(attempt);
    }

    /// Tells calls that wait that an engine may take them.
    pub(crate) fn tell_room(&self) {
        self.room.notify_waiters();
    }

    /// Calls that wait: for an engine, and because of a 429 or 503.
    pub(crate) fn waiting(&self) -> [usize; 2] {
        [
            ENGINE_WAITING_MAX - self.waiting.available_permits(),
            ABSORBED_CALLS_MAX - self.absorbing.available_permits(),
        ]
    }

    /// A place among the calls that wait because of a 429 or 503.
    pub(super) fn absorb(&self) -> Option<SemaphorePermit<'_>> {
        self.absorbing.try_acquire().ok()
    }

    // The choice.

    /// The engine for a call of `thread`. Waits for one if none takes calls.
    ///
    /// # Errors
    /// [`CallError::NoEngine`] if none took it in time.
    pub(crate) async fn place(&self, thread: &Thread) -> Result<EngineCall, CallError> {
        if let PlaceChoice::Placed(call) = self.choose(thread) {
            return Ok(call);
        }
        let asked_at = Instant::now();
        let full = CallError::NoEngine("too many calls wait for one");
        let _waiting = self.waiting.try_acquire().map_err(|_| full)?;
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            let (wait, reason) = match self.choose(thread) {
                PlaceChoice::Placed(call) => return Ok(call),
                PlaceChoice::Full => (ROOM_WAIT, "all are full"),
                PlaceChoice::None => (ENGINE_WAIT, "none of them is up and has the newest weights"),
            };
            timeout_at(asked_at + wait, room).await.map_err(|_| CallError::NoEngine(reason))?;
        }
    }

    fn choose(&self, thread: &Thread) -> PlaceChoice {
        let engines = self.all();
        if !self.is_many() {
            let only = engines.first().filter(|engine| !engine.is_draining());
            let Some(only) = only else { return PlaceChoice::None };
            // Another one may be added, and the thread's prefix is here then.
            if thread.samples() {
                self.threads.put(thread, only.id);
            }
            return EngineCall::begin(only, thread.attempt(), None, &self.room)
                .map_or(PlaceChoice::Full, PlaceChoice::Placed);
        }

        let home = self.threads.home(thread);
        let open: Vec<&Arc<Engine>> = engines.iter().filter(|one| self.is_open(one)).collect();
        let at_home = home.and_then(|id| open.iter().find(|engine| engine.id == id).copied());
        if let Some(engine) = at_home
            && let Some(call) = self.begin(engine, thread, "kept".to_owned())
        {
            if thread.samples() {
                self.threads.put(thread, engine.id);
            }
            return PlaceChoice::Placed(call);
        }
        if open.is_empty() {
            return PlaceChoice::None;
        }

        let routed = match home {
            None => "new".to_owned(),
            Some(_) if at_home.is_some() => "moved: full".to_owned(),
            Some(id) => format!("moved: {}", self.state_of(&engines, id)),
        };
        self.place_anew(thread, open, &routed, at_home.is_none())
    }

    /// Places a thread on one of the `open` engines. `stays` says that it is to be there from now.
    fn place_anew(
        &self,
        thread: &Thread,
        mut open: Vec<&Arc<Engine>>,
        routed: &str,
        stays: bool,
    ) -> PlaceChoice {
        let counts = self.threads.counts();
        let answers = |engine: &&Arc<Engine>| self.stalled_because(engine).is_none();
        if open.iter().any(answers) {
            open.retain(answers);
        }
        let bound = match stays && routed.starts_with("moved") {
            true => LoadBound::MOVED,
            false => LoadBound::NEW,
        };

        while !open.is_empty() {
            let candidates: Vec<Candidate> = open
                .iter()
                .map(|engine| Candidate {
                    name: engine.name_hash,
                    weight: engine.spec.weight,
                    threads: counts.get(&engine.id).copied().unwrap_or(0),
                    calls: engine.calls(),
                })
                .collect();
            let chosen = match thread.is_shown() {
                true => for_thread(thread.key(), &candidates, bound),
                false => least_loaded(&candidates),
            };

            let Some(index) = chosen else { return PlaceChoice::None };
            let engine = open.swap_remove(index);
            let Some(call) = self.begin(engine, thread, routed.to_owned()) else { continue };
            if stays && thread.samples() {
                self.threads.put(thread, engine.id);
            }
            if routed.starts_with("moved") {
                engine.counts.moved.fetch_add(1, Ordering::Relaxed);
            }
            return PlaceChoice::Placed(call);
        }
        PlaceChoice::Full
    }

    fn begin(&self, engine: &Arc<Engine>, thread: &Thread, routed: String) -> Option<EngineCall> {
        EngineCall::begin(engine, thread.attempt(), Some(routed), &self.room)
    }

    fn state_of(&self, engines: &[Arc<Engine>], id: u64) -> &'static str {
        let engine = engines.iter().find(|engine| engine.id == id);
        engine.map_or("removed", |engine| engine.state(&self.fence).as_str())
    }

    // Changes.

    /// Sets all engines, those of the file apart.
    ///
    /// # Errors
    /// [`ChangeError`] if there would be none, or two of one name.
    pub(crate) async fn set_all(
        &self,
        named: Vec<EngineSpec>,
        filed: Vec<EngineSpec>,
    ) -> Result<(), ChangeError> {
        let changed = async |sources: &mut Sources| {
            *sources = Sources { named, filed };
            Ok(())
        };
        self.change(changed).await
    }

    /// Replaces the engines of the file.
    ///
    /// # Errors
    /// [`ChangeError`] if there would be none, or two of one name.
    pub(crate) async fn set_filed(&self, filed: Vec<EngineSpec>) -> Result<(), ChangeError> {
        let changed = async |sources: &mut Sources| {
            sources.filed = filed;
            Ok(())
        };
        self.change(changed).await
    }

    /// Adds an engine, or changes the one of its name.
    ///
    /// # Errors
    /// [`ChangeError`] if it cannot be used.
    pub(crate) async fn add(&self, spec: EngineSpec) -> Result<(), ChangeError> {
        self.change(async |sources: &mut Sources| {
            let known = sources.named.iter_mut().chain(&mut sources.filed);
            match known.into_iter().find(|one| one.name == spec.name) {
                Some(known) => *known = spec,
                None => sources.named.push(spec),
            }
            Ok(())
        })
        .await
    }

    /// Removes an engine. Its calls in flight end by themselves.
    ///
    /// # Errors
    /// [`ChangeError`] if it is unknown, or the last.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), ChangeError> {
        self.change(async |sources: &mut Sources| {
            let all = sources.all();
            if !all.iter().any(|spec| spec.name == name) {
                return Err(ChangeError::Unknown(name.to_owned()));
            }
            if all.len() == 1 {
                return Err(ChangeError::Last(name.to_owned()));
            }
            sources.named.retain(|spec| spec.name != name);
            sources.filed.retain(|spec| spec.name != name);
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        change: impl AsyncFnOnce(&mut Sources) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        let mut sources = self.sources.lock().await;
        let before = (sources.named.clone(), sources.filed.clone());
        let changed = async {
            change(&mut sources).await?;
            let all = sources.all();
            check_all(&all)?;
            if all.is_empty() {
                return Err(InvalidEngine::NoAddress.into());
            }
            self.rebuild(&all).await
        };
        let changed = changed.await;
        if changed.is_err() {
            (sources.named, sources.filed) = before;
        }
        changed
    }

    /// Looks host names up again.
    ///
    /// # Errors
    /// [`ChangeError`] if a setting cannot be used.
    pub(crate) async fn refresh(&self) -> Result<(), ChangeError> {
        let sources = self.sources.lock().await;
        self.rebuild(&sources.all()).await
    }

    async fn rebuild(&self, specs: &[EngineSpec]) -> Result<(), ChangeError> {
        let before = self.all();
        let known = |spec: &EngineSpec| {
            let same = before.iter().filter(|engine| engine.spec.upstream == spec.upstream);
            same.filter_map(|engine| engine.address).collect()
        };
        let wanted = resolve(specs, known).await;
        let engines = wanted
            .into_iter()
            .map(|resolved| self.engine(&before, resolved))
            .collect::<Result<Vec<_>, _>>()?;
        if engines.len() > 1 {
            self.is_many.store(true, Ordering::Relaxed);
        }
        *self.guard() = Arc::new(engines);
        self.tell_room();
        self.look.notify_one();
        Ok(())
    }

    /// The engine of a name, as it was if nothing changed.
    fn engine(
        &self,
        before: &[Arc<Engine>],
        (spec, address): Resolved,
    ) -> Result<Arc<Engine>, InvalidSetting> {
        let same = before.iter().find(|engine| {
            engine.spec.name == spec.name
                && engine.spec.upstream == spec.upstream
                && engine.spec.dialect == spec.dialect
                && engine.address == address
        });
        match same {
            Some(engine) if engine.spec == spec => return Ok(Arc::clone(engine)),
            Some(engine) => return Ok(Arc::new(engine.with_spec(spec))),
            None => {}
        }
        let server = ServerSpec {
            upstream: spec.upstream.clone(),
            dialect: spec.dialect.or(self.config.dialect),
            address,
        };
        let server = InferenceServer::from_spec(&self.config, server, &self.tls)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Engine::new(id, spec, address, server, &self.look)))
    }

    fn guard(&self) -> MutexGuard<'_, Arc<Vec<Arc<Engine>>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
