//! Products with chosen planes of weights.

use entensor_components::{BackendError, DType};

use super::{Builder, Work, nodes::cost, products::few_activations};
use crate::{
    kernels::{
        Activations, Gather, Grid, Kernel, MulMat, PanelProduct, PanelTiling, Route, Tiling, max_groups,
        panel_activations, table_len,
    },
    place::{Place, Region},
    simd::GROUP,
};

/// What lies in [`Work::Routes`] and [`Work::Gathered`]: products in a row with the same ids, or the same activations too, share
/// them.
#[derive(Default)]
pub(super) struct RoutesInWork {
    /// Whose ids, and for how many planes.
    table: Option<(Place, usize)>,
    /// Whose rows in that order, and how.
    gathered: Option<(Place, Activations)>,
}

impl RoutesInWork {
    /// Bytes are written that something may have been made of.
    pub(super) fn forget(&mut self, write: &Region) {
        if self.table.is_some_and(|(ids, _)| ids.region().overlaps(write)) {
            *self = Self::default();
        }
        if self.gathered.is_some_and(|(x, _)| x.region().overlaps(write)) {
            self.gathered = None;
        }
    }
}

impl Builder {
    pub(super) fn mul_mat_id(&mut self, experts: Place, x: Place, ids: Place, out: Place) -> Result<(), BackendError> {
        let planes = experts.shape[2];
        self.check_ids(ids, planes);
        if out.is_empty() {
            return Ok(());
        }
        let rows = ids.elements();
        let groups = max_groups(rows, planes);
        // Tables hold 32 bits; nobody has memory for more rows than that.
        let fits = |n: Option<usize>| n.is_some_and(|n| u32::try_from(n).is_ok());
        if !fits(rows.checked_add(planes)) || !fits(groups.checked_mul(GROUP + 1).and_then(|n| n.checked_add(planes))) {
            return Err(BackendError::OutOfMemory { size_bytes: u64::MAX });
        }
        let table = self.work(Work::Routes, DType::I32, [table_len(groups, planes), 1, 1, 1])?;
        if self.routes.table != Some((ids, planes)) {
            let kernel = Kernel::Route(Route { ids, planes, groups, table });
            self.push(kernel, 1, &[ids], Some(&table), table.elements().saturating_mul(cost::CONVERT));
            self.routes = RoutesInWork { table: Some((ids, planes)), gathered: None };
        }
        // As many rows a plane as there are on the average: how many there really are is data.
        let panels = panel_activations(self.level, experts.dtype, rows / planes.max(1));
        let form = panels.unwrap_or(few_activations(experts.dtype));
        let gathered = self.gathered(x, ids.shape[0], table, groups, form)?;
        let k = x.shape[0];
        let weights = self.packed_weights(experts)?;
        let row_bytes = weights.row_units() * weights.unit_bytes();
        let used = rows.min(planes).saturating_mul(weights.shape[1]).saturating_mul(row_bytes);
        let cost = used.max(out.elements().saturating_mul(k) / 2);
        let routes = Some((table, groups));
        let (x, group) = (gathered, [1; 2]);
        let (kernel, chunks) = if let Some(form) = panels {
            let tiling = PanelTiling::routed(k, &out, rows, groups);
            (Kernel::PanelProduct(PanelProduct { weights, x, form, out, k, group, tiling, routes }), tiling.chunks())
        } else {
            let tiling = Tiling::routed(k, row_bytes, &out, rows, groups);
            (Kernel::MulMat(MulMat { weights, x, out, k, group, tiling, routes }), tiling.chunks())
        };
        // Elements of one product are written in no set order, and a packed result shares none.
        self.push(kernel, chunks, &[weights, x, table], Some(&out), cost);
        Ok(())
    }

    /// Activations in the order of the routes, as the products want them.
    fn gathered(
        &mut self,
        x: Place,
        slots: usize,
        table: Place,
        groups: usize,
        form: Activations,
    ) -> Result<Place, BackendError> {
        let k = x.shape[0];
        if k > isize::MAX as usize / 64 {
            return Err(BackendError::OutOfMemory { size_bytes: u64::MAX });
        }
        let shape = match form {
            Activations::Plain => [k, groups * GROUP, 1, 1],
            Activations::Groups | Activations::Bundles | Activations::Shifted => [form.bytes(k) / 4, groups, 1, 1],
        };
        let out = self.work(Work::Gathered, DType::F32, shape)?;
        if self.routes.gathered != Some((x, form)) {
            let grid = Grid::rows(groups, k, k.saturating_mul(GROUP * cost::CONVERT));
            let kernel = Kernel::Gather(Gather { x, slots, table, groups, form, out, grid });
            let cost = k.saturating_mul(groups * GROUP).saturating_mul(cost::CONVERT);
            self.push(kernel, grid.chunks(), &[x, table], Some(&out), cost);
            self.routes.gathered = Some((x, form));
        }
        Ok(out)
    }
}
