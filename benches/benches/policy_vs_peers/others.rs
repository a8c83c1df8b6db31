//! Other runtimes in Rust, each as its documentation shows it, with what it can prepare once done once.

use std::sync::Arc;

use candle_core::{Device, Storage, Tensor};
use rten::{Model, ModelOptions, RunOptions, ThreadPool};
use rten_tensor::{AsView, NdTensor, NdTensorView};
use tract_core::{
    internal::{Datum, DatumExt, IntoRunnable, SpecialOps, Tensor as TractTensor, TypedModel, TypedSimpleState, tvec},
    ops::{einsum::EinSum, math},
};

use crate::{Failure, Policy, Side, WIDTHS, onnx};

/// Copies an output of the right size.
fn copy(from: &[f32], to: &mut [f32]) -> Result<(), Failure> {
    if from.len() != to.len() {
        return Err(format!("{} outputs instead of {}", from.len(), to.len()).into());
    }
    to.copy_from_slice(from);
    Ok(())
}

/// `rten`, with weights that are packed when the model is loaded.
pub(crate) struct Rten {
    model: Model,
    pool: Arc<ThreadPool>,
    batch: usize,
}

impl Rten {
    pub(crate) fn new(policy: &Policy, batch: usize) -> Result<Self, Failure> {
        let model = ModelOptions::with_all_ops().prepack_weights(true).load(onnx::encode(policy, batch))?;
        Ok(Self { model, pool: Arc::new(ThreadPool::with_num_threads(1)), batch })
    }
}

impl Side for Rten {
    fn name(&self) -> &'static str {
        "rten"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        let x = NdTensorView::from_data([self.batch, WIDTHS[0]], x);
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&self.pool)));
        let output: NdTensor<f32, 2> = self.model.run_one(x.into(), Some(options))?.try_into()?;
        copy(output.data().ok_or("an output with gaps")?, y)
    }

    /// On its pool's only thread: handing each run over to it would cost as much as the run.
    fn time(&mut self, runs: u32, x: &[f32], y: &mut [f32]) -> Result<f64, Failure> {
        let pool = Arc::clone(&self.pool);
        pool.run(|| crate::time(self, runs, x, y))
    }
}

/// `tract`, optimized for the batch at hand, with a state that stays.
pub(crate) struct Tract {
    state: TypedSimpleState,
    batch: usize,
}

impl Tract {
    pub(crate) fn new(policy: &Policy, batch: usize) -> Result<Self, Failure> {
        let mut model = TypedModel::default();
        let mut last = model.add_source("x", f32::fact([batch, WIDTHS[0]]))?;
        for (index, layer) in policy.layers.iter().enumerate() {
            let weights = TractTensor::from_shape(&[layer.m, layer.k], &layer.weights)?;
            let weights = model.add_const(format!("weights {index}"), weights)?;
            let bias = TractTensor::from_shape(&[1, layer.m], &layer.bias)?;
            let bias = model.add_const(format!("bias {index}"), bias)?;
            let product = EinSum::new("nk,mk->nm".parse()?, f32::datum_type());
            last = model.wire_node(format!("product {index}"), product, &[last, weights])?[0];
            last = model.wire_node(format!("sum {index}"), math::add(), &[last, bias])?[0];
            if layer.relu {
                let zero = model.add_const(format!("zero {index}"), TractTensor::from_shape(&[1, 1], &[0.0_f32])?)?;
                last = model.wire_node(format!("relu {index}"), math::max(), &[last, zero])?[0];
            }
        }
        model.select_output_outlets(&[last])?;
        Ok(Self { state: model.into_optimized()?.into_runnable()?.spawn()?, batch })
    }
}

impl Side for Tract {
    fn name(&self) -> &'static str {
        "tract"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        let x = TractTensor::from_shape(&[self.batch, WIDTHS[0]], x)?;
        let outputs = self.state.run(tvec!(x.into()))?;
        copy(outputs[0].try_as_plain_ram()?.as_slice()?, y)
    }
}

/// `candle-core`, as the linear layer of `candle-nn` calls it.
pub(crate) struct Candle {
    layers: Vec<(Tensor, Tensor, bool)>,
    batch: usize,
}

impl Candle {
    pub(crate) fn new(policy: &Policy, batch: usize) -> Result<Self, Failure> {
        let mut layers = Vec::new();
        for layer in &policy.layers {
            let weights = Tensor::from_slice(&layer.weights, (layer.m, layer.k), &Device::Cpu)?;
            layers.push((weights, Tensor::from_slice(&layer.bias, layer.m, &Device::Cpu)?, layer.relu));
        }
        Ok(Self { layers, batch })
    }
}

impl Side for Candle {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        let mut last = Tensor::from_slice(x, (self.batch, WIDTHS[0]), &Device::Cpu)?;
        for (weights, bias, relu) in &self.layers {
            last = last.matmul(&weights.t()?)?.broadcast_add(bias)?;
            if *relu {
                last = last.relu()?;
            }
        }
        let (storage, layout) = last.storage_and_layout();
        let Storage::Cpu(values) = &*storage else { return Err("values outside of memory".into()) };
        let (start, end) = layout.contiguous_offsets().ok_or("an output with gaps")?;
        copy(&values.as_slice()?[start..end], y)
    }
}
