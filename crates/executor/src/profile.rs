//! `orchestrator-executor profile`: where the bytes of one tower go.
//!
//! The tower is loaded, probed and run as for a real unit, with input of the real shape and nothing in
//! particular in it. Invariant: nothing is tried that is not predicted to fit the quota.

mod consumers;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use orchestrator_engine::{Attention, EngineError, TextEncoder, VisionEncoder};
use orchestrator_footprint::{self as footprint, Kind, Timed, knee, prior_rows};
use orchestrator_ledger::{BestBatch, ComponentProfile, CurvePoint, Lease, Owner};
use orchestrator_model::ModelFolder;
use orchestrator_torch::{synchronise, trace};
use orchestrator_types::{
    AllocatorSettings, ByteCount, Component, DeviceId, FailureClass, MemoryTerms, Precision,
};

use crate::{
    error::ExecuteError,
    slice::{Slice, StartError, sum},
    tower::{Encoder, Loaded, Wanted},
};

/// A batch is timed for at least this long.
const TIMED: Duration = Duration::from_millis(300);
/// No further batch is timed after this long; the curve says which were not tried.
const PATIENCE: Duration = Duration::from_mins(1);

/// What to profile.
#[derive(Clone, Debug)]
pub struct Request {
    /// The model's folder.
    pub model: PathBuf,
    /// Which tower.
    pub component: Component,
    /// In which number format.
    pub precision: Precision,
    /// Where.
    pub device: DeviceId,
    /// Most memory of the device that may be used.
    pub ceiling: ByteCount,
    /// Settings of the allocator.
    pub allocator: Option<AllocatorSettings>,
    /// Batches of the curve; empty for a curve up to where the rate is expected to be flat.
    pub rows: Vec<u32>,
    /// How attention is computed.
    pub attention: Attention,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The device cannot be used.
    #[error(transparent)]
    Start(StartError),
    /// The component has no tower.
    #[error("`score` has no weights to profile; ask for text or vision")]
    NoTower,
    /// It does not fit.
    #[error("{0}")]
    DoesNotFit(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl From<ExecuteError> for ProfileError {
    fn from(error: ExecuteError) -> Self {
        match error.class() {
            FailureClass::Resource => Self::DoesNotFit(error.message()),
            _ => Self::Failed(error.message()),
        }
    }
}

impl From<StartError> for ProfileError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Terms(error) => ExecuteError::from(error).into(),
            error => Self::Start(error),
        }
    }
}

/// Profiles one tower.
///
/// # Errors
/// See [`ProfileError`].
pub fn profile(request: &Request) -> Result<ComponentProfile, ProfileError> {
    let slice = Slice::start(request.device.clone(), request.ceiling)?;
    match request.component {
        Component::Text => Ok(of_tower::<TextEncoder>(request, &slice)?),
        Component::Vision => Ok(of_tower::<VisionEncoder>(request, &slice)?),
        Component::Score => Err(ProfileError::NoTower),
    }
}

fn of_tower<E: Encoder>(
    request: &Request,
    slice: &Slice,
) -> Result<ComponentProfile, ExecuteError> {
    let allocator = request.allocator.clone();
    slice.adopt(&MemoryTerms { quota: None, allocator, ..MemoryTerms::default() })?;
    slice.apply_limit()?;
    let folder = ModelFolder::open(&request.model)?;
    let (tower, tokens) = crate::tower::shape(&folder, E::COMPONENT);
    let rows = batches(&request.rows, slice.kind(), tokens);
    let most = rows.iter().copied().max().unwrap_or(1);
    let Request { precision, attention, .. } = *request;
    tracing::info!(model = %request.model.display(), component = %E::COMPONENT, "loading");
    let loaded = Loaded::<E>::load(&folder, slice, Wanted { precision, rows: most, attention })?;
    let curve = curve(&loaded, slice, &rows)?;
    let best = best(&curve);
    let account = slice.account(tower.weights(precision));
    let traced = traced(&loaded, slice, best.rows)?;
    let known = loaded.state.known();
    let math =
        footprint::Setting { attention: footprint::Attention::Math, ..known.forecast.setting() };
    let weights = tower.weights(precision);
    Ok(ComponentProfile {
        component: E::COMPONENT,
        model: request.model.display().to_string(),
        precision,
        device: slice.id().clone(),
        quota_bytes: slice.ledger().quota(),
        allocator: slice.meter().allocator(),
        rows: best.rows,
        tokens,
        weights_bytes: weights,
        peak_bytes: sum(weights, traced.peak),
        predicted_bytes: known.forecast.peak(best.rows, tokens),
        operators: consumers::operators(&traced.events),
        modules: consumers::modules(&traced.events),
        phases: slice.meter().phases(),
        curve,
        fragmentation: account.fragmentation,
        math_attention_peak_bytes: sum(
            weights,
            footprint::walk(&tower, math, best.rows, tokens).peak,
        ),
        math_attention_bytes: footprint::math_attention(&tower, math, best.rows, tokens),
        timeline: consumers::timeline(&traced.events),
        best,
    })
}

/// Powers of two up to where the rate is expected to be flat, and one beyond; or what was asked for.
fn batches(asked: &[u32], kind: Kind, tokens: u32) -> Vec<u32> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let flat = prior_rows(kind, tokens);
    let most = if kind == Kind::Cpu { flat } else { flat.saturating_mul(2) };
    let powers = (0..31).map(|power| 1 << power).take_while(|rows| *rows < most);
    powers.chain([most]).collect()
}

fn curve<E: Encoder>(
    loaded: &Loaded<E>,
    slice: &Slice,
    batches: &[u32],
) -> Result<Vec<CurvePoint>, ExecuteError> {
    let started = Instant::now();
    let (tokens, weights) = {
        let known = loaded.state.known();
        (known.tokens, known.forecast.tower().weights(known.forecast.setting().precision))
    };
    let mut curve = Vec::new();
    for &rows in batches {
        let predicted = loaded.state.known().forecast.peak(rows, tokens);
        let mut point = CurvePoint {
            rows,
            predicted_bytes: predicted,
            measured_bytes: None,
            rows_per_second: None,
        };
        let activations = loaded.state.longest(rows);
        if activations <= slice.room() && started.elapsed() < PATIENCE {
            tracing::info!(rows, "measuring");
            point.measured_bytes = Some(sum(weights, loaded.pass(slice, rows)?));
            point.rows_per_second = Some(rate(loaded, slice, rows)?);
        }
        curve.push(point);
    }
    Ok(curve)
}

/// Rows per second, of a batch that has run before.
fn rate<E: Encoder>(loaded: &Loaded<E>, slice: &Slice, rows: u32) -> Result<f64, ExecuteError> {
    let _lease = lease(loaded, slice, rows)?;
    let sample = loaded.encoder.sample(rows as usize);
    let (started, mut passed) = (Instant::now(), 0);
    while started.elapsed() < TIMED {
        loaded.encoder.probe(&sample, rows as usize)?;
        passed += 1;
    }
    synchronise(slice.device())?;
    Ok(f64::from(rows) * f64::from(passed) / started.elapsed().as_secs_f64())
}

fn lease<E: Encoder>(loaded: &Loaded<E>, slice: &Slice, rows: u32) -> Result<Lease, ExecuteError> {
    let bytes = loaded.state.longest(rows);
    Ok(slice.lease(Owner::Activations { component: E::COMPONENT, rows }, bytes)?)
}

fn best(curve: &[CurvePoint]) -> BestBatch {
    let timed: Vec<Timed> = curve
        .iter()
        .filter_map(|point| Some(Timed { rows: point.rows, rate: point.rows_per_second? }))
        .collect();
    let fastest = timed.iter().map(|point| point.rate).fold(0.0, f64::max);
    match knee(&timed) {
        Some(rows) => BestBatch {
            rows,
            reason: format!(
                "the smallest of {} measured batches within {} % of the best rate, {fastest:.1} rows/s",
                timed.len(),
                footprint::RATE_TOLERANCE,
            ),
        },
        None => BestBatch { rows: 1, reason: "nothing else fits the quota".to_owned() },
    }
}

struct Traced {
    events: Vec<trace::Event>,
    peak: ByteCount,
}

/// One pass, allocation by allocation.
fn traced<E: Encoder>(
    loaded: &Loaded<E>,
    slice: &Slice,
    rows: u32,
) -> Result<Traced, ExecuteError> {
    let _lease = lease(loaded, slice, rows)?;
    let sample = loaded.encoder.sample(rows as usize);
    let (events, peak) = slice.meter().peak_of(|| {
        let trace = trace::start(slice.device())?;
        loaded.encoder.probe(&sample, rows as usize)?;
        Ok::<_, EngineError>(trace.finish())
    });
    Ok(Traced { events: events?, peak })
}
