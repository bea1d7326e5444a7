//! A tower on the slice: leased, loaded, probed, with the rows that pass through it at once.
//!
//! Invariants:
//! - Nothing is loaded or run before its bytes are leased; no probe runs that is not predicted to fit.
//! - At most [`MOST_PROBES`](orchestrator_footprint::MOST_PROBES) passes correct a prediction: two
//!   small ones, and one at the chosen size.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrator_device::host_memory;
use orchestrator_engine::{Attention, EngineError, Pixels, Placement, TextEncoder, VisionEncoder};
use orchestrator_footprint::{
    self as footprint, Forecast, Input, Kind, Learned, Pressure, Probe, Setting, Tower, probe_rows,
    rows_that_fit,
};
use orchestrator_ledger::{ForecastReading, Lease, Owner};
use orchestrator_model::{ModelFolder, TextPooling};
use orchestrator_torch::synchronise;
use orchestrator_types::{ByteCount, Component, Phase, Precision};

use crate::{
    error::ExecuteError,
    slice::{Slice, sum},
};

/// What a tower's encoder has to offer beside encoding.
pub(crate) trait Encoder: Sized {
    const COMPONENT: Component;
    /// Input of nothing in particular.
    type Sample;

    /// Reads the weights and places them.
    fn load(folder: &ModelFolder, placement: Placement) -> Result<Self, EngineError>;

    /// `rows` rows of nothing in particular, of the longest kind.
    fn sample(&self, rows: usize) -> Self::Sample;

    /// One pass over a sample of `rows` rows.
    fn probe(&self, sample: &Self::Sample, rows: usize) -> Result<(), EngineError>;
}

/// A loaded tower.
#[derive(Debug)]
pub(crate) struct Loaded<E> {
    pub(crate) encoder: E,
    pub(crate) state: Arc<State>,
    _weights: Lease,
}

/// What is known of a tower's appetite. Shared by the threads that feed it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) component: Component,
    known: Mutex<Known>,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) forecast: Forecast,
    pub(crate) learned: Learned,
    pub(crate) pressure: Pressure,
    /// Tokens of the longest row.
    pub(crate) tokens: u32,
    /// Rows, of the longest kind, that passed at once last.
    rows: u32,
}

impl State {
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of the longest kind, up to `wanted`, that fit beside what others hold now; at least one.
    pub(crate) fn rows(&self, slice: &Slice, wanted: u32) -> u32 {
        let mut known = self.known();
        let wanted = known.learned.cap(wanted, known.tokens);
        let fitting = rows_that_fit(&known.forecast, known.tokens, slice.room(), wanted);
        known.rows = fitting.unwrap_or(1);
        known.rows
    }

    /// What passes of the rows that passed at once last take.
    pub(crate) fn usual(&self, passes: u32) -> ByteCount {
        let known = self.known();
        let each = known.forecast.activations(known.rows, known.tokens);
        ByteCount::bytes(each.as_u64().saturating_mul(passes.into()))
    }

    /// Predicted peak of a pass of the longest rows, weights excluded.
    pub(crate) fn longest(&self, rows: u32) -> ByteCount {
        let known = self.known();
        known.forecast.activations(rows, known.tokens)
    }

    /// Predicted peak of a pass, weights excluded.
    pub(crate) fn activations(&self, rows: u32, tokens: u32) -> ByteCount {
        self.known().forecast.activations(rows, tokens)
    }
}

/// The sizes of a model's tower, and the tokens of its longest row.
pub(crate) fn shape(folder: &ModelFolder, component: Component) -> (Tower, u32) {
    let config = folder.config();
    let (blocks, input, tokens) = match component {
        Component::Text => (&config.text.blocks, Input::Tokens, config.text.context),
        Component::Vision | Component::Score => {
            let vision = &config.vision;
            let pixels = u64::from(vision.channels) * u64::from(vision.image_size).pow(2);
            (&vision.blocks, Input::Pixels(pixels), vision.tokens())
        }
    };
    let tower = Tower {
        input,
        layers: blocks.count,
        width: blocks.width,
        heads: blocks.heads,
        mlp: blocks.mlp,
        embedding_width: config.embedding_width,
        parameters: folder.parameters(component),
    };
    (tower, tokens)
}

/// How a tower is to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// In which number format.
    pub(crate) precision: Precision,
    /// Most rows that will pass at once.
    pub(crate) rows: u32,
    /// How attention is computed.
    pub(crate) attention: Attention,
}

impl Wanted {
    fn setting(self, slice: &Slice) -> Setting {
        let attention = match self.attention {
            Attention::Fused => footprint::Attention::Fused,
            Attention::Math => footprint::Attention::Math,
        };
        Setting { attention, ..Setting::new(slice.kind(), self.precision) }
    }

    fn placement(self, slice: &Slice) -> Placement {
        let Self { precision, attention, .. } = self;
        let chunk_tokens = self.setting(slice).chunk_tokens;
        Placement { device: slice.device(), precision, chunk_tokens, attention }
    }
}

/// What loading holds beside the weights.
fn loading(
    folder: &ModelFolder,
    slice: &Slice,
    component: Component,
    precision: Precision,
) -> ByteCount {
    let (tower, _) = shape(folder, component);
    let stored = folder.stored_bytes(component).as_u64() / tower.parameters.max(1);
    tower.loading(slice.kind(), precision, stored)
}

/// Bytes for a tower that is not loaded, and for `passes` passes of `rows` rows at once.
pub(crate) fn need(
    folder: &ModelFolder,
    slice: &Slice,
    component: Component,
    precision: Precision,
    (rows, passes): (u32, u32),
) -> ByteCount {
    let (tower, tokens) = shape(folder, component);
    let forecast = Forecast::new(tower, Setting::new(slice.kind(), precision));
    let pass = forecast.activations(rows, tokens).as_u64();
    let passing = ByteCount::bytes(pass.saturating_mul(passes.into()));
    let loading = loading(folder, slice, component, precision);
    // The probes come after loading and before the passes: never both at once.
    sum(tower.weights(precision), loading.max(passing))
}

impl<E: Encoder> Loaded<E> {
    /// Leases, loads and probes.
    pub(crate) fn load(
        folder: &ModelFolder,
        slice: &Slice,
        wanted: Wanted,
    ) -> Result<Self, ExecuteError> {
        slice.enter(Phase::Load);
        let precision = wanted.precision;
        let (tower, tokens) = shape(folder, E::COMPONENT);
        let held = tower.weights(precision);
        let passing = loading(folder, slice, E::COMPONENT, precision);
        let owner = Owner::Weights { model: name(folder), component: E::COMPONENT, precision };
        let mut weights = slice.lease(owner, sum(held, passing))?;
        let before = host_memory().anonymous;
        let encoder = E::load(folder, wanted.placement(slice))?;
        folder.require_unchanged()?;
        weights.shrink_to(held);
        // Weights are mapped and cross from there: on the way to a GPU the host keeps no copy.
        let after = host_memory().anonymous;
        tracing::debug!(model = name(folder), component = %E::COMPONENT, weights = %held,
            ?before, ?after, "loaded; anonymous host memory before and after");
        let known = Known {
            forecast: Forecast::new(tower, wanted.setting(slice)),
            learned: Learned::default(),
            pressure: Pressure::default(),
            tokens,
            rows: wanted.rows.max(1),
        };
        slice.enter(Phase::WarmUp);
        let state = Arc::new(State { component: E::COMPONENT, known: Mutex::new(known) });
        let loaded = Self { encoder, state, _weights: weights };
        loaded.warm_up(slice, &name(folder), wanted.rows.max(1))?;
        slice.enter(Phase::Run);
        Ok(loaded)
    }

    /// Two small passes correct the prediction, the rows that fit follow from it, and one pass with
    /// them confirms it.
    fn warm_up(&self, slice: &Slice, model: &str, wanted: u32) -> Result<(), ExecuteError> {
        let tokens = self.state.known().tokens;
        if slice.kind() == Kind::Cuda {
            // Loads kernels and makes handles and workspaces, which stay.
            self.pass(slice, 1)?;
            slice.measure_runtime()?;
        }
        let most = self.fitting(slice, tokens, wanted)?;
        for rows in probe_rows(most).into_iter().filter(|rows| *rows < most) {
            let peak = self.pass(slice, rows)?;
            self.state.known().forecast.correct(Probe { rows, tokens, peak });
        }
        let (rows, predicted, activations) = self.confirm(slice, tokens, wanted)?;
        slice.measure_runtime()?;
        let mut known = self.state.known();
        known.forecast.correct(Probe { rows, tokens, peak: activations });
        known.rows = rows;
        let precision = known.forecast.setting().precision;
        let held = known.forecast.tower().weights(precision);
        slice.meter().note_forecast(ForecastReading {
            component: E::COMPONENT,
            model: model.to_owned(),
            precision,
            rows,
            tokens,
            predicted_bytes: predicted,
            measured_bytes: Some(sum(held, activations)),
            probes: u32::try_from(known.forecast.probes()).unwrap_or(u32::MAX),
            reason: if rows == wanted {
                "as planned; it fits the quota".to_owned()
            } else if known.learned == Learned::default() {
                format!("the quota leaves room for {rows} of {wanted} planned rows")
            } else {
                format!("more than {rows} of {wanted} planned rows were refused")
            },
        });
        Ok(())
    }

    /// One pass with the most rows that fit: the rows, what was predicted for them with weights, and
    /// what they took without. Whoever else uses the device may refuse it all the same; then less is
    /// believed to fit.
    fn confirm(
        &self,
        slice: &Slice,
        tokens: u32,
        wanted: u32,
    ) -> Result<(u32, ByteCount, ByteCount), ExecuteError> {
        loop {
            let rows = self.fitting(slice, tokens, wanted)?;
            let predicted = self.state.known().forecast.peak(rows, tokens);
            match self.pass(slice, rows) {
                Ok(activations) => return Ok((rows, predicted, activations)),
                Err(ExecuteError::Engine(EngineError::OutOfMemory(words))) if rows > 1 => {
                    tracing::warn!(rows, words, "a pass that should fit was refused");
                    slice.give_back_cache()?;
                    self.state.known().learned.refuse(rows, tokens);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The most rows, up to `wanted`, that fit beside what is held.
    fn fitting(&self, slice: &Slice, tokens: u32, wanted: u32) -> Result<u32, ExecuteError> {
        let known = self.state.known();
        let wanted = known.learned.cap(wanted, tokens);
        if let Some(rows) = rows_that_fit(&known.forecast, tokens, slice.room(), wanted) {
            return Ok(rows);
        }
        let one = known.forecast.activations(1, tokens);
        let owner = Owner::Activations { component: E::COMPONENT, rows: 1 };
        drop(known);
        // Says who holds what, and whether waiting helps.
        drop(slice.lease(owner, one)?);
        Ok(1)
    }

    /// A pass over nothing in particular; what it allocated at its peak.
    pub(crate) fn pass(&self, slice: &Slice, rows: u32) -> Result<ByteCount, ExecuteError> {
        let predicted = self.state.longest(rows);
        let owner = Owner::Activations { component: E::COMPONENT, rows };
        let _lease = slice.lease(owner, predicted)?;
        let sample = self.encoder.sample(rows as usize);
        let (passed, peak) = slice.meter().peak_of(|| {
            self.encoder.probe(&sample, rows as usize)?;
            Ok::<_, EngineError>(synchronise(slice.device())?)
        });
        passed?;
        Ok(peak)
    }
}

/// The last part of a model's path.
fn name(folder: &ModelFolder) -> String {
    let path = folder.path();
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

impl Encoder for VisionEncoder {
    const COMPONENT: Component = Component::Vision;
    type Sample = PictureSample;

    fn load(folder: &ModelFolder, placement: Placement) -> Result<Self, EngineError> {
        Self::load(folder, placement)
    }

    fn sample(&self, rows: usize) -> PictureSample {
        let count = rows * self.pixels();
        if self.takes_bytes() {
            PictureSample::Bytes(vec![127; count])
        } else {
            PictureSample::Numbers(vec![0.5; count])
        }
    }

    fn probe(&self, sample: &PictureSample, rows: usize) -> Result<(), EngineError> {
        let mut out = vec![0.0; rows * self.width()];
        let pixels = match sample {
            PictureSample::Numbers(numbers) => Pixels::Numbers(numbers),
            PictureSample::Bytes(crops) => {
                Pixels::Bytes { crops, scale: [0.01; 3], shift: [-1.0; 3] }
            }
        };
        self.encode(pixels, rows, &mut out)
    }
}

/// Grey pictures.
pub(crate) enum PictureSample {
    Numbers(Vec<f32>),
    Bytes(Vec<u8>),
}

impl Encoder for TextEncoder {
    const COMPONENT: Component = Component::Text;
    type Sample = Vec<i64>;

    fn load(folder: &ModelFolder, placement: Placement) -> Result<Self, EngineError> {
        Self::load(folder, placement)
    }

    fn sample(&self, rows: usize) -> Vec<i64> {
        let end = match self.pooling() {
            TextPooling::FirstOf(id) => id,
            TextPooling::LargestId => self.last_id(),
        };
        // One word and its end, padded with the end as the executor pads.
        let mut ids = vec![end; rows * self.context()];
        ids.iter_mut().step_by(self.context()).for_each(|first| *first = 0);
        ids
    }

    fn probe(&self, sample: &Vec<i64>, rows: usize) -> Result<(), EngineError> {
        let mut out = vec![0.0; rows * self.width()];
        self.encode(sample, rows, self.context(), &mut out)
    }
}
