//! The experts that tokens were routed to, by the pages that hold their keys and values.
//!
//! They are recorded whether or not a request asks for them, so that a prompt which takes pages
//! from the prefix cache has the experts of their positions, too.

use std::collections::HashMap;
use std::ops::Range;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kernels::{PAGE, PageMove, Placement};

use crate::config::experts::ExpertConfig;
use crate::model::cache::SequenceCache;

/// The most experts whose numbers fit a byte.
const BYTE_EXPERTS_MAX: usize = 256;

/// Bytes to which the header of a NumPy file is padded.
const NUMPY_ALIGN: usize = 64;

/// The experts of the first tokens of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutedExperts {
    /// `[tokens, layers, chosen]`.
    shape: [usize; 3],
    /// True if the numbers of experts fit a byte.
    is_small: bool,
    values: Vec<u16>,
}

impl RoutedExperts {
    /// The experts of all tokens from `start` on, a NumPy file in base64, as vLLM sends it: `uint8`
    /// for up to 256 experts, else `uint16`.
    pub(crate) fn numpy(&self, start: usize) -> String {
        let kind = if self.is_small { "|u1" } else { "<u2" };
        let [tokens, layers, chosen] = self.shape;
        let start = start.min(tokens);
        let tokens = tokens - start;
        let header = format!(
            "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({tokens}, {layers}, \
             {chosen}), }}"
        );
        // Magic bytes, version and the header's length take ten bytes; a line feed ends it.
        let padded = (10 + header.len() + 1).next_multiple_of(NUMPY_ALIGN) - 10;

        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((padded as u16).to_le_bytes());
        file.extend(format!("{header:<0$}\n", padded - 1).bytes());
        for value in &self.values[start * layers * chosen..] {
            let [low, high] = value.to_le_bytes();
            file.push(low);
            file.extend((!self.is_small).then_some(high));
        }
        BASE64_STANDARD.encode(file)
    }

    /// The 32-bit numbers of all tokens from `start` on, in base64, as SGLang sends them.
    pub(crate) fn integers(&self, start: usize) -> String {
        let from = (start * self.shape[1] * self.shape[2]).min(self.values.len());
        let bytes = self.values[from..].iter().flat_map(|value| u32::from(*value).to_le_bytes());
        BASE64_STANDARD.encode(bytes.collect::<Vec<u8>>())
    }
}

/// The experts of every position of every page.
#[derive(Debug)]
pub(crate) struct RoutedPages {
    pages: usize,
    layers: usize,
    chosen: usize,
    is_small: bool,
    /// `[pages, PAGE, layers, chosen]`; empty until the first step.
    values: Vec<u16>,
    /// Those of pages in the host's memory, by their places.
    on_host: HashMap<u32, Vec<u16>>,
}

impl RoutedPages {
    pub(crate) fn new(pages: usize, experts: &ExpertConfig) -> RoutedPages {
        RoutedPages {
            pages,
            layers: experts.is_mixture.len(),
            chosen: experts.choice.chosen,
            is_small: experts.choice.experts <= BYTE_EXPERTS_MAX,
            values: Vec::new(),
            on_host: HashMap::new(),
        }
    }

    /// Numbers of one position.
    fn width(&self) -> usize {
        self.layers * self.chosen
    }

    /// The numbers of a slot in `values`.
    fn range(&self, slot: usize) -> Range<usize> {
        slot * self.width()..(slot + 1) * self.width()
    }

    /// Records the experts of a step's rows, whose keys and values are in these slots.
    pub(crate) fn record(&mut self, slots: &[usize], experts: &[u16]) {
        // The memory is reserved here, and taken only when a page is written.
        if self.values.is_empty() {
            self.values = vec![0; self.pages * PAGE * self.width()];
        }
        for (slot, experts) in slots.iter().zip(experts.chunks_exact(self.width())) {
            let range = self.range(*slot);
            let to = self.values.get_mut(range);
            to.into_iter().for_each(|to| to.copy_from_slice(experts));
        }
    }

    /// Copies the experts of pages as their keys and values were. To be called before the step is
    /// recorded that was launched behind these copies.
    pub(crate) fn move_pages(&mut self, moves: &[PageMove]) {
        let width = PAGE * self.width();
        for PageMove { page, place, to } in moves {
            let first = *page as usize * width;
            let Some(values) = self.values.get_mut(first..first + width) else { continue };
            match (to, self.on_host.get(place)) {
                (Placement::Host, _) => drop(self.on_host.insert(*place, values.to_vec())),
                (Placement::Device, Some(kept)) => values.copy_from_slice(kept),
                (Placement::Device, None) => {}
            }
        }
    }

    /// The experts of the first `tokens` tokens of a sequence, if all of them were computed.
    pub(crate) fn of(&self, cache: &SequenceCache, tokens: usize) -> Option<RoutedExperts> {
        if cache.len < tokens || tokens == 0 {
            return None;
        }
        let mut values = Vec::with_capacity(tokens * self.width());
        for position in 0..tokens {
            let slot = cache.slot(position)?;
            values.extend_from_slice(self.values.get(self.range(slot))?);
        }
        let shape = [tokens, self.layers, self.chosen];
        Some(RoutedExperts { shape, is_small: self.is_small, values })
    }

    /// Frees the memory. No sequence may hold a page, and no page may be in the host's memory.
    pub(crate) fn clear(&mut self) {
        (self.values, self.on_host) = (Vec::new(), HashMap::new());
    }
}

#[cfg(test)]
mod tests;
