//! Shards of a version on the way to another: of the version held, of one on the way, or nothing.

use std::path::Path;

use deltachain::tensor::{
    Layout, MemoryState, SafetensorsState, StagedSafetensors, State, StateDigests, StateWriter, TensorInfo,
};
use deltachain::{Error, Result};

use crate::held::{Record, ShardRecord};
use crate::observer::{InPhase, Observer, Phase};

/// One shard.
pub(crate) struct Shard<'a> {
    pub(crate) number: usize,
    tensors: Tensors<'a>,
    pub(crate) digests: StateDigests,
    /// As for [`deltachain::Application::with_unproven`].
    pub(crate) unproven: Vec<bool>,
    /// `None` if it comes from nothing.
    pub(crate) layout: Option<Layout>,
}

enum Tensors<'a> {
    None(MemoryState),
    Held(Part<'a>),
    /// Never visible.
    Between(StagedSafetensors),
}

impl Shard<'_> {
    /// The empty state.
    pub(crate) fn nothing(number: usize) -> Self {
        let digests = StateDigests::from_tensors(&[], Vec::new());
        Self { number, tensors: Tensors::None(MemoryState::new()), digests, unproven: Vec::new(), layout: None }
    }

    /// A shard of a version on the way.
    pub(crate) fn between(
        number: usize,
        tensors: StagedSafetensors,
        (digests, unproven): (StateDigests, Vec<bool>),
        layout: Layout,
    ) -> Self {
        Self { number, tensors: Tensors::Between(tensors), digests, unproven, layout: Some(layout) }
    }

    pub(crate) fn state(&self) -> &dyn State {
        match &self.tensors {
            Tensors::None(state) => state,
            Tensors::Held(state) => state,
            Tensors::Between(state) => state,
        }
    }
}

/// The files of the version held, and what they are.
#[derive(Debug)]
pub(crate) struct HeldModel {
    pub(crate) files: SafetensorsState,
    record: Record,
    /// Of each shard that is here.
    digests: Vec<StateDigests>,
}

impl HeldModel {
    /// Opens the files at `model`, which `record` says what they are. They are read and compared with it, unless they are
    /// trusted; the shapes of their tensors are compared all the same.
    ///
    /// # Errors
    /// USAGE if they are something else; IO; the observer's.
    pub(crate) fn open(model: &Path, record: &Record, trust: bool, observer: &dyn Observer) -> Result<Self> {
        let files = SafetensorsState::open(model)?;
        let bytes = if trust { 0 } else { files.tensors().iter().map(TensorInfo::bytes).fold(0, u64::saturating_add) };
        let hashing = InPhase::begin(observer, Phase::Hash, bytes);
        let digests = |shard: &ShardRecord| {
            let part = Part::of(&files, shard)?;
            let digests = if trust {
                StateDigests::from_tensors(&part.infos, shard.tensors.iter().map(|(_, digest)| *digest).collect())
            } else {
                StateDigests::of(&part, &hashing)?
            };
            if digests.state == shard.here {
                return Ok(StateDigests { state: shard.state, ..digests });
            }
            let differs = part
                .infos
                .iter()
                .zip(digests.tensors.iter().zip(&shard.tensors))
                .find(|(_, (now, (_, was)))| *now != was);
            let what =
                differs.map_or_else(|| "the tensors".to_owned(), |(info, _)| format!("the tensor {:?}", info.name()));
            Err(Error::usage(format!("{what} changed since the version was put here")).in_file(model))
        };
        let digests = record.shards.iter().map(digests).collect::<Result<_>>()?;
        drop(hashing);
        Ok(Self { files, record: record.clone(), digests })
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn shards(&self) -> Result<Vec<Shard<'_>>> {
        let shard = |(record, digests): (&ShardRecord, &StateDigests)| {
            let part = Part::of(&self.files, record)?;
            let layout = Some(Layout::parse(&record.layout, &part.infos)?);
            let (digests, unproven) = (digests.clone(), Vec::new());
            Ok(Shard { number: record.number, tensors: Tensors::Held(part), digests, unproven, layout })
        };
        self.record.shards.iter().zip(&self.digests).map(shard).collect()
    }
}

/// The tensors of one shard among those of all.
struct Part<'a> {
    whole: &'a SafetensorsState,
    infos: Vec<TensorInfo>,
    /// Their numbers in the whole.
    numbers: Vec<usize>,
}

impl<'a> Part<'a> {
    fn of(whole: &'a SafetensorsState, shard: &ShardRecord) -> Result<Self> {
        let numbers = shard.tensors.iter().map(|(name, _)| {
            let missing = || Error::usage(format!("the tensor {name:?} is gone")).in_file(whole.path());
            whole.find(name).ok_or_else(missing)
        });
        let numbers = numbers.collect::<Result<Vec<_>>>()?;
        let infos = numbers.iter().map(|&number| whole.tensors()[number].clone()).collect();
        Ok(Self { whole, infos, numbers })
    }
}

impl State for Part<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.whole.read(number_in(&self.numbers, tensor)?, offset, out)
    }
}

/// Writes the tensors of one shard among those of all.
pub(crate) struct PartWriter<'a> {
    whole: &'a StagedSafetensors,
    numbers: Vec<usize>,
}

impl<'a> PartWriter<'a> {
    /// For these tensors of the shard, all of which are among those of the whole.
    pub(crate) fn new(whole: &'a StagedSafetensors, infos: &[TensorInfo]) -> Self {
        Self { whole, numbers: infos.iter().filter_map(|info| whole.find(info.name())).collect() }
    }
}

impl StateWriter for PartWriter<'_> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.whole.write(number_in(&self.numbers, tensor)?, offset, bytes)
    }
}

fn number_in(numbers: &[usize], tensor: usize) -> Result<usize> {
    numbers.get(tensor).copied().ok_or_else(|| Error::usage("no such tensor in the shard"))
}
