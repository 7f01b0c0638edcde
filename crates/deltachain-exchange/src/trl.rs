//! The patches proposed for the asynchronous GRPO trainer of TRL: a safetensors file with positions
//! and new values.
//!
//! The later form has `NAME.idx` and `NAME.val` for a changed tensor, and the `encoding` of all
//! positions in `__metadata__`. `raw` means `I32` positions. `gap_delta` means the number of
//! elements between two changes, as `U16`, or as `U32` for a tensor with a gap of 2^16 or more. The
//! first form has `NAME.indices` (`I32`) and `NAME.values`. Values are BF16, whatever the tensor's
//! dtype.
//!
//! A patch names no base, and has no checksum: a damaged file, or one for another base, cannot be
//! noticed unless it breaks its own form.

use std::path::Path;

use deltachain::tensor::{Dtype, State, StateWriter, TensorInfo, find};
use deltachain::{Error, Progress, Result};

use crate::container::{Entry, Envelope, create_parent, write as write_file};
use crate::refusal::{malformed, unsupported, wrong_base};
use crate::step::{Export, Import, Step};
use crate::tensors::{bytes_of, change_tensors, changed_pairs, each};

/// Coding of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Number of elements between two changed ones.
    GapDelta,
    /// Positions.
    Raw,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::GapDelta => "gap_delta",
            Self::Raw => "raw",
        }
    }
}

/// The two forms of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    First,
    Later(Encoding),
}

impl Form {
    fn of(envelope: &Envelope) -> Result<Self> {
        let note = |key: &str| envelope.metadata.get(key).map(String::as_str);
        match (note("format"), note("encoding")) {
            (Some("sparse_weight_patch"), None) if note("sparse") == Some("False") => {
                Err(Error::usage(
                    "this is a whole state, not a patch; it can be read as any safetensors file",
                ))
            }
            (Some("sparse_weight_patch"), None) => Ok(Self::First),
            (_, Some("gap_delta")) => Ok(Self::Later(Encoding::GapDelta)),
            (_, Some("raw")) => Ok(Self::Later(Encoding::Raw)),
            (_, Some("nvcomp_cascaded")) => Err(unsupported(
                "positions in nvcomp_cascaded can only be decoded with a GPU",
            )),
            (_, Some(other)) => Err(unsupported(format!(
                "the encoding {other:?} is not supported"
            ))),
            (_, None) => Err(malformed(
                "the file does not say how it is encoded, so it is not a patch of TRL",
            )),
        }
    }

    fn suffixes(self) -> [&'static str; 2] {
        match self {
            Self::First => [".indices", ".values"],
            Self::Later(_) => [".idx", ".val"],
        }
    }

    /// Decodes positions, which are strictly ascending.
    fn places(self, dtype: Dtype, bytes: &[u8]) -> Result<Vec<u64>> {
        let numbers: Vec<u64> = match (self, dtype) {
            (Self::First | Self::Later(Encoding::Raw), Dtype::I32) => {
                let all = bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|four| u64::try_from(i32::from_le_bytes(*four)));
                all.collect::<Result<_, _>>()
                    .map_err(|_| malformed("a position is negative"))?
            }
            (Self::Later(Encoding::GapDelta), Dtype::U16) => bytes
                .as_chunks()
                .0
                .iter()
                .map(|two| u64::from(u16::from_le_bytes(*two)))
                .collect(),
            (Self::Later(Encoding::GapDelta), Dtype::U32) => bytes
                .as_chunks()
                .0
                .iter()
                .map(|four| u64::from(u32::from_le_bytes(*four)))
                .collect(),
            _ => return Err(malformed(format!("positions have the dtype {dtype}"))),
        };
        if self == Self::Later(Encoding::GapDelta) {
            let next = |end: &mut u64, gap: u64| {
                let place = *end + gap;
                *end = place + 1;
                Some(place)
            };
            return Ok(numbers.into_iter().scan(0, next).collect());
        }
        if numbers.is_sorted_by(|left, right| left < right) {
            Ok(numbers)
        } else {
            Err(malformed("positions are not ascending"))
        }
    }
}

pub(crate) fn apply(
    delta: &Path,
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
) -> Result<Import> {
    let envelope = Envelope::open(delta)?;
    let form = Form::of(&envelope)?;
    check_entries(form, &envelope, base)?;
    change_tensors(base, out, progress, |info, bytes| {
        restore(form, &envelope, info, bytes)
    })?;
    let mut remarks = vec![
        "TRL's patches have no checksum and no base: nothing proves that this result is right"
            .to_owned(),
    ];
    if form == Form::First {
        let remark = "the first form was made by comparing values: where only the sign of a zero \
                      changed, it is missing";
        remarks.push(remark.to_owned());
    }
    let format = match form {
        Form::First => "TRL, first form".to_owned(),
        Form::Later(encoding) => format!("TRL, {}", encoding.name()),
    };
    let version = envelope.metadata.get("model_version").cloned();
    Ok(Import {
        format,
        version,
        base_version: None,
        remarks,
    })
}

/// Checks that the file has positions and values for each tensor it names, and that the base has
/// these tensors as BF16.
fn check_entries(form: Form, envelope: &Envelope, base: &dyn State) -> Result<()> {
    let suffixes = form.suffixes();
    for name in envelope.names() {
        let tensor = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        let tensor = tensor
            .ok_or_else(|| malformed("an entry is neither positions nor values").of_tensor(name))?;
        if suffixes
            .iter()
            .any(|suffix| envelope.find(&format!("{tensor}{suffix}")).is_none())
        {
            return Err(malformed("positions or values are missing").of_tensor(tensor));
        }
        let info = find(base.tensors(), tensor).map(|number| &base.tensors()[number]);
        let info =
            info.ok_or_else(|| wrong_base("the base does not have this tensor").of_tensor(tensor))?;
        if info.dtype() != Dtype::BF16 {
            let message = format!(
                "the base has {} here, and TRL rounds all values to BF16: the new ones are not in \
                 the file",
                info.dtype()
            );
            return Err(unsupported(message).of_tensor(tensor));
        }
    }
    Ok(())
}

/// Turns the bytes of a tensor into the new ones, if the file has the tensor.
fn restore(form: Form, envelope: &Envelope, info: &TensorInfo, bytes: &mut [u8]) -> Result<()> {
    let numbers = form
        .suffixes()
        .map(|suffix| envelope.find(&format!("{}{suffix}", info.name())));
    if let [Some(places), Some(values)] = numbers {
        let (dtype, places) = envelope.entry(places)?;
        let places = form.places(dtype, &places)?;
        let (dtype, values) = envelope.entry(values)?;
        scatter(bytes, &places, dtype, &values)?;
    }
    Ok(())
}

fn scatter(bytes: &mut [u8], places: &[u64], dtype: Dtype, values: &[u8]) -> Result<()> {
    let values = values.as_chunks::<2>().0;
    if dtype != Dtype::BF16 || values.len() != places.len() {
        return Err(malformed(format!(
            "there are {} positions, but {} values of {dtype}",
            places.len(),
            values.len()
        )));
    }
    let elements = bytes.as_chunks_mut::<2>().0;
    for (place, value) in places.iter().zip(values) {
        let element = usize::try_from(*place)
            .ok()
            .and_then(|place| elements.get_mut(place));
        *element
            .ok_or_else(|| wrong_base(format!("element {place} is beyond the tensor's end")))? =
            *value;
    }
    Ok(())
}

pub(crate) fn check(encoding: Encoding, info: &TensorInfo, changes: bool) -> Result<()> {
    if !changes {
        return Ok(());
    }
    let most = match encoding {
        Encoding::GapDelta => 1 << 32,
        Encoding::Raw => 1 << 31,
    };
    if info.dtype() != Dtype::BF16 {
        Err(Error::usage(format!(
            "TRL's patches carry BF16 only, and a tensor of {} changes",
            info.dtype()
        )))
    } else if info.elements() > most {
        Err(Error::usage(format!(
            "this encoding of TRL's patches carries tensors of at most {most} elements"
        )))
    } else if Form::Later(encoding)
        .suffixes()
        .iter()
        .any(|suffix| info.name().ends_with(suffix))
    {
        Err(Error::usage(
            "in TRL's patches, names that end in .idx or .val mean something else",
        ))
    } else {
        Ok(())
    }
}

pub(crate) fn write(
    encoding: Encoding,
    base: &dyn State,
    target: &dyn State,
    step: &Step<'_>,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<Export> {
    let path = directory
        .join("deltas")
        .join(format!("step_{:06}.safetensors", step.number));
    let coded = each(target.tensors().len(), |tensor| {
        let info = &target.tensors()[tensor];
        let (old, new) = (bytes_of(base, tensor)?, bytes_of(target, tensor)?);
        check(encoding, info, old != new).map_err(|error| error.of_tensor(info.name()))?;
        progress.advance(info.bytes())?;
        if old == new {
            return Ok(Vec::new());
        }
        let (places, bits) = changed_pairs(&old, &new);
        let (dtype, positions) = positions(encoding, &places)?;
        let values = bits.iter().flat_map(|[_, new]| new.to_le_bytes()).collect();
        Ok(vec![
            Entry {
                name: format!("{}.idx", info.name()),
                dtype,
                bytes: positions,
            },
            Entry {
                name: format!("{}.val", info.name()),
                dtype: Dtype::BF16,
                bytes: values,
            },
        ])
    })?;
    create_parent(&path, base)?;
    let metadata = [("encoding".to_owned(), encoding.name().to_owned())].into();
    let bytes = write_file(
        &path,
        &metadata,
        &mut coded.into_iter().flatten().collect::<Vec<_>>(),
    )?;
    Ok(Export { path, bytes })
}

fn positions(encoding: Encoding, places: &[u64]) -> Result<(Dtype, Vec<u8>)> {
    let too_long = |_| Error::usage("the tensor is too long");
    if encoding == Encoding::Raw {
        let all = places
            .iter()
            .map(|place| i32::try_from(*place).map(i32::to_le_bytes));
        return Ok((
            Dtype::I32,
            all.collect::<Result<Vec<_>, _>>()
                .map_err(too_long)?
                .concat(),
        ));
    }
    let ends = std::iter::once(0).chain(places.iter().map(|place| place + 1));
    let gaps: Vec<u64> = places
        .iter()
        .zip(ends)
        .map(|(place, end)| place - end)
        .collect();
    // The widest gap determines the dtype for the whole tensor.
    if let Ok(narrow) = gaps
        .iter()
        .map(|gap| u16::try_from(*gap).map(u16::to_le_bytes))
        .collect::<Result<Vec<_>, _>>()
    {
        return Ok((Dtype::U16, narrow.concat()));
    }
    let wide = gaps
        .iter()
        .map(|gap| u32::try_from(*gap).map(u32::to_le_bytes))
        .collect::<Result<Vec<_>, _>>();
    Ok((Dtype::U32, wide.map_err(too_long)?.concat()))
}
