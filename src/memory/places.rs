//! Places of a state's tensors in caller-owned memory: in rows of lanes, as a whole, with strides,
//! or in parts (SPEC section 24.7). All arithmetic on lanes is in this module; code that moves
//! values only needs to know rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::{Error, ErrorClass, Result};
use crate::limits::address;
use crate::tensor::TensorInfo;

/// Memory for a tensor: for all of it, or for a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The tensor's name.
    pub name: String,
    /// The number of the row of memory that it lies in.
    pub row: usize,
    /// The lane of the row at which its first element begins.
    pub first: u64,
    /// The length of each dimension, in elements. For dtypes whose lanes are not elements, the
    /// length of the last dimension is in lanes.
    pub shape: Vec<u64>,
    /// Stride of each dimension, in lanes; `None` if the region is contiguous.
    pub strides: Option<Vec<u64>>,
    /// The elements of the tensor that the region has: ranges of the first dimensions, and all of
    /// the other dimensions.
    pub index: Vec<Range<u64>>,
}

impl Region {
    /// All of a tensor, at the beginning of a row.
    pub fn whole(info: &TensorInfo, row: usize) -> Self {
        let all: Vec<Range<u64>> = info.shape().iter().map(|&length| 0..length).collect();
        let mut shape = info.shape().to_vec();
        if info.bytes() > 0
            && let Some((at, length, _)) = last_in_lanes(info, &all)
        {
            shape.truncate(at);
            // The shape of a scalar has no dimension.
            shape.extend((!all.is_empty() || length > 1).then_some(length));
        }
        Self {
            name: info.name().to_owned(),
            row,
            first: 0,
            shape,
            strides: None,
            index: Vec::new(),
        }
    }
}

/// The places of a state's tensors. A tensor that is not in this memory has no parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    tensors: Vec<TensorInfo>,
    parts: Vec<Vec<TensorPart>>,
    /// For each tensor that shares the memory of another one, the number of that one.
    ties: Vec<Option<usize>>,
    /// For each tensor, the number of covers that its divided parts make, here and in other
    /// processes.
    covers: Vec<usize>,
}

/// Lanes of a tensor that memory holds in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPart {
    /// The row that the lanes lie in.
    row: usize,
    /// The range of the row from the first of these lanes to the last one.
    first: u64,
    end: u64,
    /// From the outermost one on. Dimensions that are complete here are joined with the one before
    /// if possible.
    dimensions: Vec<Dimension>,
    /// The elements of the tensor that the lanes are.
    elements: Box<[Range<u64>]>,
    /// The numbers of the covers that the part is in; `None` if it has all lanes of the tensor.
    covers: Option<Vec<usize>>,
}

/// A piece of a tensor, as far as a part has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPiece {
    /// The number of the tensor.
    pub tensor: usize,
    /// The number of the part among those of the tensor.
    pub part: usize,
    /// The number of the piece.
    pub piece: u64,
}

/// A dimension in lanes: its length in the tensor, the range of it that is here, and the stride in
/// memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dimension {
    length: u64,
    here: Range<u64>,
    stride: u64,
}

impl Dimension {
    fn count(&self) -> u64 {
        self.here.end - self.here.start
    }
}

/// Lanes of a part that have consecutive numbers in the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// The number of the first lane in the tensor.
    pub(super) lane: u64,
    /// Place of the first lane in the row.
    pub(super) place: u64,
    /// Distance between neighbouring lanes in the row.
    pub(super) step: u64,
    /// Number of lanes.
    pub(super) count: u64,
}

impl Stretch {
    /// The place of each lane.
    pub(super) fn places(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |number| self.place + number * self.step)
    }
}

impl TensorPart {
    /// Whether another part begins at the same lane of memory.
    fn is_at(&self, other: &Self) -> bool {
        (self.row, self.first) == (other.row, other.first)
    }

    /// Number of lanes.
    fn count(&self) -> u64 {
        self.dimensions.iter().map(Dimension::count).product()
    }

    /// The row that the lanes lie in.
    pub fn row(&self) -> usize {
        self.row
    }

    /// The range of the row from the first of these lanes to the last one; other lanes may lie
    /// between them.
    pub fn range(&self) -> Range<u64> {
        self.first..self.end
    }

    /// The elements of the tensor that the lanes are, by dimension.
    pub fn elements(&self) -> &[Range<u64>] {
        &self.elements
    }

    /// Its dimensions in lanes, from the outermost one on: the length in the tensor, the range of
    /// it that is here, and the stride in the row. Dimensions that are complete here are joined
    /// with the one before if possible.
    pub fn dimensions(&self) -> impl Iterator<Item = (u64, Range<u64>, u64)> {
        self.dimensions
            .iter()
            .map(|one| (one.length, one.here.clone(), one.stride))
    }

    /// Whether all of the tensor is here.
    pub(super) fn is_all(&self) -> bool {
        self.covers.is_none()
    }

    /// The place of the first lane of the tensor in the row, if all of the tensor lies there in its
    /// order.
    pub fn whole(&self) -> Option<u64> {
        match &*self.dimensions {
            [
                Dimension {
                    length,
                    here,
                    stride: 1,
                },
            ] if *here == (0..*length) => Some(self.first),
            _ => None,
        }
    }

    /// The stretch that has a lane of the tensor, or else the next stretch after it.
    ///
    /// Lanes are numbered through the whole tensor, and a part is a box of it. Each row of the box,
    /// along the last dimension, is a stretch. If a tensor has the shape `[4, 6]`, and the part has
    /// `[1..3, 2..5]` of it, there are two stretches, `8..11` and `14..17`:
    ///
    /// ```text
    ///      0   1   2   3   4   5
    ///      6   7 [ 8   9  10] 11      lanes up to 10 find the upper one,
    ///     12  13 [14  15  16] 17      11 to 16 the lower one,
    ///     18  19  20  21  22  23      17 and above none
    /// ```
    fn stretch_at(&self, lane: u64) -> Option<Stretch> {
        let (last, outer) = self.dimensions.split_last()?;
        // Lanes in one step of the current dimension.
        let mut size: u64 = self.dimensions.iter().map(|one| one.length).product();
        let mut rest = lane;
        // True as long as the indices found so far are those of the lane. From the first dimension
        // on where the lane is outside the box, the search goes on at the box's next row instead.
        let mut is_at = true;
        let mut indices = Vec::with_capacity(outer.len());
        for one in outer {
            size /= one.length;
            if !is_at {
                indices.push(one.here.start);
                continue;
            }
            let at = rest / size;
            rest -= at * size;
            if at < one.here.start {
                indices.push(one.here.start);
                is_at = false;
            } else {
                indices.push(at);
                if at >= one.here.end {
                    self.carry(&mut indices)?;
                    is_at = false;
                }
            }
        }
        if is_at && rest >= last.here.end {
            self.carry(&mut indices)?;
            is_at = false;
        }
        let begin = if is_at {
            rest.max(last.here.start)
        } else {
            last.here.start
        };
        // The number of the box's row in the tensor, and the place of its first lane.
        let mut number = 0;
        let mut place = self.first;
        for (one, &at) in outer.iter().zip(&indices) {
            number = number * one.length + at;
            place += (at - one.here.start) * one.stride;
        }
        Some(Stretch {
            lane: number * last.length + begin,
            place: place + (begin - last.here.start) * last.stride,
            step: last.stride,
            count: last.here.end - begin,
        })
    }

    /// Moves on to the box's next row, as a counter carries: raises the last of these indices, and
    /// resets the dimensions that are full. `None` after the last row.
    fn carry(&self, indices: &mut Vec<u64>) -> Option<()> {
        let given = indices.len();
        loop {
            let dimension = &self.dimensions[indices.len().checked_sub(1)?];
            let last = indices.last_mut()?;
            *last += 1;
            if *last < dimension.here.end {
                break;
            }
            indices.pop();
        }
        let rest = indices.len()..given;
        indices.extend(self.dimensions[rest].iter().map(|one| one.here.start));
        Some(())
    }

    /// The stretches of this part among some lanes of the tensor.
    pub(super) fn stretches(&self, lanes: Range<u64>) -> impl Iterator<Item = Stretch> {
        let mut next = lanes.start;
        std::iter::from_fn(move || {
            let mut found = self
                .stretch_at(next)
                .filter(|found| found.lane < lanes.end)?;
            found.count = found.count.min(lanes.end - found.lane);
            next = found.lane + found.count;
            Some(found)
        })
    }

    /// Spans of the lanes of this part among some lanes of the tensor.
    ///
    /// # Errors
    /// R-LIM-01 if there are more lanes than the address space holds.
    fn spans(&self, lanes: Range<u64>) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        for one in self.stretches(lanes) {
            if one.step == 1 {
                spans.push(Span::all(self.row, one.place, address(one.count)?));
            } else {
                spans.extend(Span::at(self.row, &one.places().collect::<Vec<_>>()));
            }
        }
        Ok(spans)
    }

    /// Finds the lanes of this part among some lanes of the tensor. Returns their places among
    /// these lanes, and their places in the row. Numbers ascend, and count from `first`.
    pub(crate) fn find(
        &self,
        first: u64,
        numbers: impl IntoIterator<Item = u32>,
    ) -> (Vec<u32>, Vec<u64>) {
        let (mut which, mut places) = (Vec::new(), Vec::new());
        let mut now = self.stretch_at(first);
        for (at, number) in (0..).zip(numbers) {
            let lane = first + u64::from(number);
            while now.is_some_and(|now| now.lane + now.count <= lane) {
                now = self.stretch_at(lane);
            }
            let Some(stretch) = now else { break };
            if lane >= stretch.lane {
                which.push(at);
                places.push(stretch.place + (lane - stretch.lane) * stretch.step);
            }
        }
        (which, places)
    }
}

impl Places {
    /// The places of these tensors, ascending by name, in the regions `given`. Tensors with the
    /// same memory are tied.
    ///
    /// # Errors
    /// USAGE if tensors are not in order, or given twice; if a region is for no tensor, or does not
    /// have the form of its part; or if tensors share memory without being tied. UNSUPPORTED,
    /// without a rule, if a lane has elements of several parts.
    pub fn new(tensors: Vec<TensorInfo>, given: &[Region]) -> Result<Self> {
        if let Some([_, info]) = tensors
            .array_windows()
            .find(|[left, right]| left.name() >= right.name())
        {
            return Err(
                Error::usage("the tensor is duplicate, or not in the order of names")
                    .of_tensor(info.name()),
            );
        }
        let mut parts = parts_of(&tensors, given)?;
        let ties = ties_of(&tensors, &parts)?;
        // The process is alone until other ones are known.
        for (parts, info) in parts.iter_mut().zip(&tensors) {
            let lanes = info.bytes() / info.dtype().lane_bytes() as u64;
            for part in parts {
                part.covers = (part.count() != lanes).then(Vec::new);
            }
        }
        Ok(Self {
            covers: vec![0; tensors.len()],
            tensors,
            parts,
            ties,
        })
    }

    /// Finds the covers that several processes make together. `all` has for each process, and for
    /// each tensor here, the [elements](TensorPart::elements) of its parts; `own` is the number of
    /// this process. A tensor of which no process has a part is refused if `needs` returns true for
    /// its name.
    ///
    /// # Errors
    /// USAGE if parts are missing, or overlap without being the same (R-SUM-10).
    pub fn divide(
        &mut self,
        own: usize,
        all: &[Vec<Vec<Elements>>],
        needs: impl Fn(&str) -> bool,
    ) -> Result<()> {
        for (number, info) in self.tensors.iter().enumerate() {
            let of_ranks: Vec<&[Elements]> = all
                .iter()
                .map(|rank| rank.get(number).map_or(&[][..], Vec::as_slice))
                .collect();
            let (count, joined) = covers(info, &of_ranks, needs(info.name()))
                .map_err(|error| error.of_tensor(info.name()))?;
            self.covers[number] = count;
            for (place, part) in self.parts[number].iter_mut().enumerate() {
                part.covers = joined.get(&(own, place)).cloned();
            }
        }
        Ok(())
    }

    /// The tensors, ascending by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The part that has all of a tensor, if there is one.
    pub fn whole(&self, tensor: usize) -> Option<&TensorPart> {
        self.parts(tensor).iter().find(|part| part.is_all())
    }

    /// Whether each tensor can be read: there is a part that has all of it.
    pub fn are_whole(&self) -> bool {
        (0..)
            .zip(&self.tensors)
            .all(|(number, info)| info.bytes() == 0 || self.whole(number).is_some())
    }

    /// Spans of `length` bytes of a tensor, starting at byte `offset`.
    ///
    /// # Errors
    /// USAGE if they are not whole lanes, or no part has all of the tensor.
    pub fn spans_of_bytes(&self, tensor: usize, offset: u64, length: usize) -> Result<Vec<Span>> {
        let wrong = || Error::usage("no such range in the tensor");
        let info = self.tensors.get(tensor).ok_or_else(wrong)?;
        let width = info.dtype().lane_bytes() as u64;
        let end = offset.checked_add(length as u64).ok_or_else(wrong)?;
        if end > info.bytes() || !offset.is_multiple_of(width) || !end.is_multiple_of(width) {
            return Err(wrong().of_tensor(info.name()));
        }
        if length == 0 {
            return Ok(Vec::new());
        }
        let part = self.whole(tensor).ok_or_else(wrong)?;
        part.spans(offset / width..end / width)
    }

    /// The part of a [`PartPiece`].
    pub fn part(&self, of: &PartPiece) -> Option<&TensorPart> {
        self.parts(of.tensor).get(of.part)
    }

    /// The parts of a tensor that are here.
    pub fn parts(&self, tensor: usize) -> &[TensorPart] {
        self.parts.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The tensor whose memory this one shares, if it is tied.
    pub(crate) fn tied(&self, tensor: usize) -> Option<usize> {
        self.ties.get(tensor).copied().flatten()
    }

    /// Gives the tensors other shapes.
    ///
    /// # Errors
    /// USAGE if the tensors differ in name, dtype or length, or if a part of a tensor with another
    /// shape is not all of it, in order.
    pub fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        let fits =
            |(old, new): (&TensorInfo, &TensorInfo)| old.name() == new.name() && new.can_patch(old);
        if tensors.len() != self.tensors.len() || !self.tensors.iter().zip(tensors).all(fits) {
            return Err(Error::usage(
                "the memory does not have these tensors, by name, dtype and length",
            ));
        }
        let changes = self
            .tensors
            .iter()
            .zip(tensors)
            .zip(&mut self.parts)
            .filter(|((old, new), _)| old != new);
        let changes: Vec<_> = changes.map(|((_, new), parts)| (new, parts)).collect();
        for (new, parts) in &changes {
            if parts.iter().any(|part| part.whole().is_none()) {
                return Err(Error::usage(
                    "the tensor has another shape in this version, and only parts of it are in \
                     this memory",
                )
                .of_tensor(new.name()));
            }
        }
        for (new, part) in changes
            .into_iter()
            .flat_map(|(new, parts)| parts.iter_mut().map(move |part| (new, part)))
        {
            part.elements = new.shape().iter().map(|&length| 0..length).collect();
        }
        self.tensors = tensors.to_vec();
        Ok(())
    }

    /// Refuses a version in which tensors that share memory differ. `digest` returns the digest of
    /// the tensor with a name.
    ///
    /// # Errors
    /// USAGE, with the name of a tensor that differs.
    pub fn check_ties<D: PartialEq>(&self, digest: impl Fn(&str) -> Option<D>) -> Result<()> {
        for (info, tied) in self.tensors.iter().zip(&self.ties) {
            let Some(other) = tied.map(|other| self.tensors[other].name()) else {
                continue;
            };
            if digest(info.name()) != digest(other) {
                let text = format!(
                    "the tensor shares its memory with {other:?}, but they differ in this version"
                );
                return Err(Error::usage(text).of_tensor(info.name()));
            }
        }
        Ok(())
    }

    /// Number of covers that the divided parts of a tensor form.
    pub(crate) fn covers(&self, tensor: usize) -> usize {
        self.covers.get(tensor).copied().unwrap_or(0)
    }

    /// The covers that a part of a tensor is in; `None` if it is compared alone.
    ///
    /// # Errors
    /// USAGE if it would be compared with nothing (R-SUM-10), because covers have not been
    /// [found](Self::divide).
    pub(crate) fn joins(&self, tensor: usize, part: usize) -> Result<Option<&[usize]>> {
        let covers = self.parts(tensor)[part].covers.as_deref();
        if covers.is_some_and(<[usize]>::is_empty) {
            let error = Error::usage(
                "this process has a part of the tensor, and it is unknown which processes have the \
                 other parts",
            );
            return Err(error.of_tensor(self.tensors[tensor].name()));
        }
        Ok(covers)
    }
}

/// The parts of each tensor.
fn parts_of(tensors: &[TensorInfo], given: &[Region]) -> Result<Vec<Vec<TensorPart>>> {
    let mut parts: Vec<Vec<TensorPart>> = vec![Vec::new(); tensors.len()];
    for one in given {
        let number = tensors.binary_search_by(|info| info.name().cmp(&one.name));
        let number = number.map_err(|_| Error::usage("no such tensor").of_tensor(&one.name))?;
        let part = part_of(&tensors[number], one).map_err(|error| error.of_tensor(&one.name))?;
        let Some(part) = part else {
            continue;
        };
        if parts[number].iter().any(|other| part.is_at(other)) {
            return Err(
                Error::usage("several of its parts are at the same place in memory")
                    .of_tensor(&one.name),
            );
        }
        parts[number].push(part);
    }
    Ok(parts)
}

/// For each tensor that shares the memory of an earlier one, the number of that one.
fn ties_of(tensors: &[TensorInfo], parts: &[Vec<TensorPart>]) -> Result<Vec<Option<usize>>> {
    let mut ties = vec![None; tensors.len()];
    let mut first: BTreeMap<(usize, u64), usize> = BTreeMap::new();
    for (number, own) in parts.iter().enumerate() {
        // Places are in bytes, because lanes of different dtypes may lie in one row.
        let width = tensors[number].dtype().lane_bytes() as u64;
        let place = |part: &TensorPart| (part.row, part.first.saturating_mul(width));
        let others: BTreeSet<usize> = own
            .iter()
            .map(|part| *first.entry(place(part)).or_insert(number))
            .collect();
        let Some(&other) = others.first() else {
            continue;
        };
        if other == number && others.len() == 1 {
            continue;
        }
        let is_tied = others.len() == 1
            && tensors[other].dtype() == tensors[number].dtype()
            && are_same(own, &parts[other]);
        if !is_tied {
            let text = format!(
                "the tensor shares memory with {:?}, but they are not the same part of tensors of \
                 one dtype and shape",
                tensors[other].name()
            );
            return Err(Error::usage(text).of_tensor(tensors[number].name()));
        }
        ties[number] = Some(other);
    }
    Ok(ties)
}

/// True if these parts lie in the same lanes of memory, one by one.
fn are_same(left: &[TensorPart], right: &[TensorPart]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|(left, right)| {
            (left.row, left.first, &left.dimensions) == (right.row, right.first, &right.dimensions)
        })
}

/// The elements of a tensor that a part has, by dimension.
pub type Elements = Box<[Range<u64>]>;

/// Whether lanes are elements.
fn has_elements(info: &TensorInfo) -> bool {
    info.dtype().bits() == 8 * info.dtype().lane_bytes() as u64
}

/// Joins the last dimensions of a tensor to one dimension of whole lanes, as few of them as
/// possible. Returns the first of these dimensions, their total length in lanes, and the range of
/// lanes of some elements. `None` if one of these lanes has other elements, too.
fn last_in_lanes(info: &TensorInfo, elements: &[Range<u64>]) -> Option<(usize, u64, Range<u64>)> {
    let lane_bits = 8 * info.dtype().lane_bytes() as u64;
    let in_lanes = |count: u64| {
        let bits = count.checked_mul(info.dtype().bits())?;
        bits.is_multiple_of(lane_bits).then_some(bits / lane_bits)
    };
    let mut inner = 1;
    for (at, (&length, range)) in info.shape().iter().zip(elements).enumerate().rev() {
        let all = in_lanes(length * inner)
            .zip(in_lanes(range.start * inner))
            .zip(in_lanes(range.end * inner));
        if let Some(((length, start), end)) = all {
            return Some((at, length, start..end));
        }
        if *range != (0..length) {
            return None;
        }
        inner *= length;
    }
    if !elements.is_empty() {
        return None;
    }
    let length = in_lanes(1)?;
    Some((0, length, 0..length))
}

/// The part of the tensor that the region gives, in lanes; `None` if it has no lanes.
///
/// An example: of a tensor of shape `[4, 6]`, a region has the rows 1 and 2 and the columns 2 to 4,
/// so its `index` is `[1..3, 2..5]` and its `shape` `[2, 3]`. If it is a view of memory that is 8
/// lanes wide, its strides are `[8, 1]`, and its two dimensions are
///
/// ```text
/// length 4, here 1..3, stride 8
/// length 6, here 2..5, stride 1
/// ```
///
/// Inner dimensions become one if elements are smaller than a lane ([`last_in_lanes`]), and
/// dimensions that are complete here are joined with the one before ([`joined`]).
fn part_of(info: &TensorInfo, given: &Region) -> Result<Option<TensorPart>> {
    let shape = info.shape();
    let wrong = || {
        Error::usage(format!(
            "the tensor has the shape {:?}, which is not that part of {shape:?}: {:?}",
            given.shape, given.index
        ))
    };
    let elements = elements_of(shape, given).ok_or_else(wrong)?;
    if elements.iter().any(Range::is_empty) || info.bytes() == 0 {
        return if given.shape.contains(&0) {
            Ok(None)
        } else {
            Err(wrong())
        };
    }
    let Some((at, length, here)) = last_in_lanes(info, &elements) else {
        return Err(Error::refused(
            ErrorClass::Unsupported,
            format!(
                "{} cannot be divided there: a byte would have elements of several parts",
                info.dtype()
            ),
        ));
    };
    let strides = match &given.strides {
        Some(strides) => strides.clone(),
        None => in_a_row(&given.shape),
    };
    let outer = elements.get(..at).unwrap_or_default();
    let has_form = strides.len() == given.shape.len()
        && has_form(&given.shape, outer, &here)
        // For dtypes whose lanes are elements, the number of dimensions must be the tensor's as
        // well.
        && (!has_elements(info) || given.shape.len() == shape.len());
    if !has_form {
        return Err(wrong());
    }
    let inner: Vec<(u64, u64)> = given.shape[at.min(given.shape.len())..]
        .iter()
        .copied()
        .zip(strides[at.min(strides.len())..].iter().copied())
        .collect();
    let last = Dimension {
        length,
        here,
        stride: stride_of(&inner).ok_or_else(wrong)?,
    };
    let outer = outer.iter().zip(shape).zip(&strides);
    let outer = outer.map(|((here, &length), &stride)| Dimension {
        length,
        here: here.clone(),
        stride,
    });
    let dimensions = joined(outer.chain([last]));
    if !are_apart(&dimensions) {
        return Err(Error::usage(
            "several of its elements are at the same place in memory",
        ));
    }
    Ok(Some(TensorPart {
        row: given.row,
        first: given.first,
        end: end_of(given.first, &dimensions).ok_or_else(wrong)?,
        dimensions,
        elements: elements.into(),
        covers: None,
    }))
}

/// The elements of the tensor that a region has, for every dimension; `None` if the tensor does not
/// have them.
fn elements_of(shape: &[u64], given: &Region) -> Option<Vec<Range<u64>>> {
    let whole = shape
        .get(given.index.len()..)?
        .iter()
        .map(|&length| 0..length);
    let elements: Vec<Range<u64>> = given.index.iter().cloned().chain(whole).collect();
    let is_inside = elements
        .iter()
        .zip(shape)
        .all(|(range, &length)| range.start <= range.end && range.end <= length);
    is_inside.then_some(elements)
}

/// True if a region's shape is that of the part: its outer dimensions have these lengths, and the
/// others have as many lanes as `here`.
fn has_form(shape: &[u64], outer: &[Range<u64>], here: &Range<u64>) -> bool {
    let own = shape.get(..outer.len()).unwrap_or_default();
    let lanes = shape
        .iter()
        .try_fold(1_u64, |lanes, &length| lanes.checked_mul(length));
    let lengths = outer.iter().map(|range| range.end - range.start);
    own.len() == outer.len()
        && lengths.clone().eq(own.iter().copied())
        && lanes == Some(lengths.product::<u64>() * (here.end - here.start))
}

/// Joins each dimension that is complete here with the one before, if one stride describes both.
fn joined(dimensions: impl Iterator<Item = Dimension>) -> Vec<Dimension> {
    let mut joined: Vec<Dimension> = Vec::new();
    for one in dimensions {
        if one.here == (0..one.length)
            && let Some(before) = joined.last_mut()
        {
            if one.length == 1 {
                continue;
            }
            if before.count() == 1 || one.length.checked_mul(one.stride) == Some(before.stride) {
                *before = Dimension {
                    length: before.length * one.length,
                    here: before.here.start * one.length..before.here.end * one.length,
                    stride: one.stride,
                };
                continue;
            }
        }
        joined.push(one);
    }
    if let [one] = joined.as_mut_slice()
        && one.count() == 1
    {
        one.stride = 1;
    }
    joined
}

/// The lane of the row after the part's last one; `None` beyond 64 bits.
fn end_of(first: u64, dimensions: &[Dimension]) -> Option<u64> {
    let mut last = first;
    for one in dimensions {
        last = last.checked_add((one.count() - 1).checked_mul(one.stride)?)?;
    }
    last.checked_add(1)
}

/// Whether the strides ensure that no two lanes lie in the same place: each stride exceeds the
/// reach of all dimensions with smaller strides.
fn are_apart(dimensions: &[Dimension]) -> bool {
    let mut long: Vec<(u64, u64)> = dimensions
        .iter()
        .filter(|one| one.count() > 1)
        .map(|one| (one.stride, one.count() - 1))
        .collect();
    long.sort_unstable();
    let mut reach = 0_u64;
    long.into_iter().all(|(stride, steps)| {
        let is_apart = stride > reach;
        reach = reach.saturating_add(stride.saturating_mul(steps));
        is_apart
    })
}

/// Strides of a contiguous region of this shape.
fn in_a_row(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at]);
    }
    strides
}

/// The stride of dimensions, given as lengths and strides, that can be joined to one; `None` if
/// they cannot.
fn stride_of(inner: &[(u64, u64)]) -> Option<u64> {
    let mut long = inner.iter().filter(|(length, _)| *length > 1);
    let Some(&(mut length, mut stride)) = long.next_back() else {
        return Some(1);
    };
    let last = stride;
    while let Some(&(outer, its)) = long.next_back() {
        if length.checked_mul(stride) != Some(its) {
            return None;
        }
        (length, stride) = (outer, its);
    }
    Some(last)
}

/// A part, by the number of its process and its place there.
type Holder = (usize, usize);

/// The holders of each part, which is given by the range of its elements in every dimension.
type Holders = BTreeMap<Vec<(u64, u64)>, Vec<Holder>>;

/// For each part, the covers that it is in.
type PartCovers = BTreeMap<Holder, Vec<usize>>;

/// Finds the covers of a tensor that several processes make together: each cover holds every
/// element exactly once, and each part is in at least one of them. Parts that are all of the tensor
/// are not counted, because they are compared alone. Returns the number of covers, and the covers
/// that each part is in.
fn covers(
    info: &TensorInfo,
    ranks: &[&[Elements]],
    is_needed: bool,
) -> Result<(usize, PartCovers)> {
    let total: u64 = info.shape().iter().product();
    let mut holders = Holders::new();
    let mut is_whole = total == 0;
    for (rank, parts) in ranks.iter().enumerate() {
        for (place, part) in parts.iter().enumerate() {
            let count: u64 = part.iter().map(|range| range.end - range.start).product();
            is_whole |= count == total;
            if 0 < count && count < total {
                let key = part.iter().map(|range| (range.start, range.end)).collect();
                holders.entry(key).or_default().push((rank, place));
            }
        }
    }
    if holders.is_empty() {
        return if is_whole || !is_needed {
            Ok((0, BTreeMap::new()))
        } else {
            Err(Error::usage("no process has this tensor"))
        };
    }
    check_apart(&holders)?;
    let held: u64 = holders
        .keys()
        .map(|part| part.iter().map(|(start, end)| end - start).product::<u64>())
        .sum();
    if held != total {
        let parts: Vec<_> = holders.keys().collect();
        return Err(Error::usage(format!(
            "the parts of all ranks together do not cover the shape {:?}: {parts:?}",
            info.shape()
        )));
    }
    let count = holders.values().map(Vec::len).max().unwrap_or(0);
    let mut joined = PartCovers::new();
    for own in holders.values() {
        for cover in 0..count {
            // Parts with fewer copies are in several covers.
            joined
                .entry(own[cover % own.len()])
                .or_default()
                .push(cover);
        }
    }
    Ok((count, joined))
}

/// Refuses different parts that have elements in common.
fn check_apart(holders: &Holders) -> Result<()> {
    let distinct: Vec<(&Vec<(u64, u64)>, usize)> =
        holders.iter().map(|(part, own)| (part, own[0].0)).collect();
    for (at, (one, rank)) in distinct.iter().enumerate() {
        for (other, rank_of_other) in &distinct[at + 1..] {
            let meets = one
                .iter()
                .zip(*other)
                .all(|(left, right)| left.0.max(right.0) < left.1.min(right.1));
            if meets {
                return Err(Error::usage(format!(
                    "parts overlap: {one:?} of rank {rank}, {other:?} of rank {rank_of_other}"
                )));
            }
        }
    }
    Ok(())
}

/// Lanes of a row of memory: lanes at some distances from `first`, or all lanes from there on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The number of the row.
    pub row: usize,
    /// The lane of the row that distances count from.
    pub first: u64,
    /// Distance of each lane from `first`, below 2^31; `None` for all lanes from `first` on.
    pub places: Option<Vec<u32>>,
    /// Number of lanes.
    pub count: usize,
}

/// Maximum distance of a lane from the first lane of its span.
const REACH: u64 = 1 << 31;

impl Span {
    /// All lanes from `first` on.
    pub(crate) fn all(row: usize, first: u64, count: usize) -> Self {
        Self {
            row,
            first,
            places: None,
            count,
        }
    }

    /// The lanes at these places of a row, in as many spans as [`REACH`] requires.
    pub(crate) fn at(row: usize, places: &[u64]) -> Vec<Self> {
        let together = places.chunk_by(|left, right| left / REACH == right / REACH);
        let one = |places: &[u64]| {
            let first = places[0] / REACH * REACH;
            // Less than the reach.
            let above = places
                .iter()
                .map(|place| u32::try_from(place - first).unwrap_or(u32::MAX));
            Self {
                row,
                first,
                places: Some(above.collect()),
                count: places.len(),
            }
        };
        together.map(one).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
