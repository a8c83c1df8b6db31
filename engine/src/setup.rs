//! How an engine is made: its backends, and what it installs in a World.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{Backend, BackendConfig, BackendHandle, BackendIndex, BackendName, Configured, Priority};
use entensor_systems::{Backends, Recording, init_resources, install_plan_schedule};

use crate::{
    engine::Engine,
    error::EngineError,
    registry::{AUTO, Registry, RegistryError},
};

/// Whether every new plan is verified; on in debug builds.
#[derive(Resource, Clone, Copy, Debug)]
pub(crate) struct VerifyPlans(pub(crate) bool);

/// Says how an engine is made.
pub struct EngineBuilder {
    specs: Vec<String>,
    instances: Vec<Arc<dyn Backend>>,
    registry: Registry,
    configs: Vec<(String, BackendConfig)>,
    recording: Recording,
    verify: bool,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self {
            specs: Vec::new(),
            instances: Vec::new(),
            registry: Registry::default(),
            configs: Vec::new(),
            recording: Recording::Off,
            verify: cfg!(debug_assertions),
        }
    }
}

impl EngineBuilder {
    /// Adds a backend by its text, below those added before; `auto` adds the best that there are. The last must be on host memory.
    #[must_use]
    pub fn backend(mut self, spec: impl Into<String>) -> Self {
        self.specs.push(spec.into());
        self
    }

    /// Adds a backend of the user's own, below those made from texts.
    #[must_use]
    pub fn backend_instance(mut self, backend: Arc<dyn Backend>) -> Self {
        self.instances.push(backend);
        self
    }

    /// Uses another registry to make backends from texts.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Chooses what a backend leaves to its caller: which of its buffer types planned memory has, and which work it takes from the host.
    ///
    /// ```
    /// use entensor::{BackendConfig, Engine};
    ///
    /// let config = BackendConfig { buffer_type: Some("cpu-repacked".into()), ..BackendConfig::default() };
    /// let refused = Engine::builder().backend("cpu:threads=1").configure("cpu", config).build();
    /// let text = refused.err().expect("results need an ordinary layout").to_string();
    /// assert!(text.contains("cannot plan memory of type `cpu-repacked`"), "{text}");
    /// ```
    #[must_use]
    pub fn configure(mut self, backend: impl Into<String>, config: BackendConfig) -> Self {
        self.configs.push((backend.into(), config));
        self
    }

    /// Records the canonical text of every pass into [`entensor_systems::text::PassTexts`].
    #[must_use]
    pub fn record_passes(mut self) -> Self {
        self.recording = Recording::On;
        self
    }

    /// Whether every new plan is verified. On in debug builds, off in release builds unless asked for.
    #[must_use]
    pub fn verify_plans(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// An engine with a World of its own.
    ///
    /// # Errors
    /// Backends that do not exist, do not start, or have one name.
    pub fn build(self) -> Result<Engine, EngineError> {
        self.install(World::new())
    }

    /// An engine over the caller's World: adds resources, backend entities and the plan schedule to it. Later
    /// calls use [`Engine::over`].
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_in(self, world: &mut World) -> Result<Engine<&mut World>, EngineError> {
        self.install(world)
    }

    fn install<W: BorrowMut<World>>(mut self, mut owned: W) -> Result<Engine<W>, EngineError> {
        if self.specs.is_empty() && self.instances.is_empty() {
            self.specs.push(AUTO.into());
        }
        let mut backends = Vec::new();
        for spec in &self.specs {
            for spec in self.registry.expand(spec)? {
                backends.push(self.registry.make(&spec)?);
            }
        }
        backends.append(&mut self.instances);
        for (i, backend) in backends.iter().enumerate() {
            if backends[..i].iter().any(|other| other.name().eq_ignore_ascii_case(backend.name())) {
                return Err(RegistryError::DuplicateName { name: backend.name().into() }.into());
            }
        }
        for (name, config) in &self.configs {
            configure(&mut backends, name, config)?;
        }
        let world = owned.borrow_mut();
        init_resources(world);
        world.insert_resource(VerifyPlans(self.verify));
        for (index, backend) in (0..).zip(&backends) {
            let name = BackendName(backend.name().into());
            world.spawn((name, Priority(BackendIndex(index)), BackendHandle(Arc::clone(backend))));
        }
        world.insert_resource(Backends(backends));
        install_plan_schedule(world, self.recording)?;
        Ok(Engine::new_in(owned))
    }
}

/// Puts a configured backend in the place of the one of its name.
fn configure(backends: &mut [Arc<dyn Backend>], name: &str, config: &BackendConfig) -> Result<(), RegistryError> {
    let known = || backends.iter().map(|backend| backend.name().into()).collect();
    let Some(at) = backends.iter().position(|backend| backend.name().eq_ignore_ascii_case(name)) else {
        return Err(RegistryError::UnknownName { name: name.into(), known: known() });
    };
    let configured = Configured::new(Arc::clone(&backends[at]), config);
    let configured = configured.map_err(|source| RegistryError::Config { backend: name.into(), source })?;
    backends[at] = Arc::new(configured);
    Ok(())
}
