"""Operators of the standard domain that ONNX Runtime's CUDA provider runs in the narrow dtypes.

Found by making a session of each operator alone, without the CPU to fall back to, in onnxruntime-gpu 1.31; Attention,
GRU, RMSNormalization, Resize, RotaryEmbedding and Upsample were not tried and are assumed. What it lacks would run on
the CPU in the middle of a model, or, in bfloat16, not at all. Clip has no kernel of bfloat16 but ONNX's function, which
needs a Less of bfloat16 that is lacking too; a scatter in bfloat16 has no `reduction`.
"""

_FLOAT16 = """
    Abs Add ArgMax ArgMin Attention AveragePool BatchNormalization Cast CastLike Ceil Clip Compress Concat
    ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Dropout Einsum Elu Equal Erf Exp Expand Flatten
    Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual
    HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Min Mish Mod Mul Neg NonZero PRelu Pad Pow
    RMSNormalization RNN Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RoiAlign RotaryEmbedding Round ScatterElements ScatterND
    Selu Shape Shrink Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum
    Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where
"""
_BFLOAT16 = """
    Abs Add Attention Cast CastLike Concat ConstantOfShape Conv Cos Div Erf Exp Expand Flatten Gather
    GatherElements GatherND Gelu Gemm HardSigmoid HardSwish Identity IsInf IsNaN LayerNormalization MatMul Max Min
    Mish Mod Mul Neg Pow RMSNormalization ReduceL1 ReduceMean ReduceSum ReduceSumSquare Relu Reshape RoiAlign
    RotaryEmbedding ScatterElements ScatterND Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign Split Sqrt
    Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where
"""
KERNELS: dict[str, frozenset[str]] = {"float16": frozenset(_FLOAT16.split()), "bfloat16": frozenset(_BFLOAT16.split())}
# What becomes an operator of ours, whatever ONNX Runtime has, and the rewrite that makes it one.
FUSED_BY = {"Conv": "fuse-conv", "ConvTranspose": "fuse-conv", "LayerNormalization": "fuse-layer-norm"}
POINTWISE = "lone-pointwise"  # the rewrite that takes what is pointwise, of known rank, and has found no neighbour
POINTWISE_OF_BFLOAT16 = frozenset({"Clip"})  # what ONNX Runtime lacks in bfloat16 and that rewrite takes
SCATTER = "fuse-scatter"  # the rewrite that takes every scatter of known ranks, whatever its reduction
SCATTERS = ("ScatterND", "ScatterElements")
REWRITES = frozenset({*FUSED_BY.values(), POINTWISE, SCATTER})
