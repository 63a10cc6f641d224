"""The layers that OPENVINO claims on devices of the kind CPU. Written by `make claims`; do not
edit. `table` explains the lines.
"""

from typing import Final

VERSION: Final = "2026.4.1"
"""The OpenVINO that computed them right, on: AMD EPYC."""

REFERENCE: Final = "onnx 1.23.2, ONNX Runtime 1.32.0"
"""What said what is right."""

ALLOWED: Final = """
Abs | 6 13 | f16>f16 f32>f32 i32>i32 i64>i64 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
Acos | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Acosh | 9 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Add | 14 | u8,u8>u8 | 01 | - | 0 1 2 3
Add | 7 13 14 | f16,f16>f16 f32,f32>f32 i32,i32>i32 i64,i64>i64 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Add | 7 13 14 | u32,u32>u32 u64,u64>u64 | 00 01 10 | - | 3
AffineGrid | 20 | f32,i64>f32 | 01 | - align_corners=1 | 4 5
And | 7 | bool,bool>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
ArgMax | 1 11 12 13 | f16>i64 f32>i64 i32>i64 i64>i64 i8>i64 u8>i64 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ArgMin | 1 11 12 13 | f16>i64 f32>i64 i32>i64 i64>i64 i8>i64 u8>i64 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
Asin | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Asinh | 9 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Atan | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Atanh | 9 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Attention | 23 24 | f16,f16,f16,bool>f16,-,-,f16 | 0000 0111 1000 | - is_causal=1,qk_matmul_output_mode=3 is_causal=1,qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=1 qk_matmul_output_mode=1,softmax_precision=1 qk_matmul_output_mode=3 qk_matmul_output_mode=3,softmax_precision=0 qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=3,softmax_precision=11 softmax_precision=1 | 4
Attention | 23 24 | f16,f16,f16,f16>f16,-,-,f16 f32,f32,f32,f32>f32,-,-,f32 | 0000 0111 1000 | - is_causal=1,qk_matmul_output_mode=3 is_causal=1,qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=1 qk_matmul_output_mode=1,softmax_precision=1 qk_matmul_output_mode=2 qk_matmul_output_mode=2,softmax_precision=1 qk_matmul_output_mode=3 qk_matmul_output_mode=3,softmax_precision=0 qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=3,softmax_precision=11 softmax_precision=1 | 4
Attention | 23 24 | f32,f32,f32,bool>f32,-,-,f32 | 0000 0111 1000 | - is_causal=1,qk_matmul_output_mode=3 is_causal=1,qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=1,softmax_precision=1 qk_matmul_output_mode=3 qk_matmul_output_mode=3,softmax_precision=0 qk_matmul_output_mode=3,softmax_precision=1 qk_matmul_output_mode=3,softmax_precision=11 softmax_precision=1 | 4
Attention | 23 | f16,f16,f16,bool>f16 f16,f16,f16,f16>f16 f32,f32,f32,bool>f32 | 0000 | - | 4
Attention | 23 | f16,f16,f16,f16,f16,f16>f16,f16,f16 f32,f32,f32,f32,f32,f32>f32,f32,f32 | 000000 | - | 4
Attention | 23 | f16,f16,f16,f16,f16,f16>f16,f16,f16,f16 | 000000 011111 | qk_matmul_output_mode=1 qk_matmul_output_mode=1,softmax_precision=0 qk_matmul_output_mode=1,softmax_precision=1 qk_matmul_output_mode=1,softmax_precision=11 qk_matmul_output_mode=2 qk_matmul_output_mode=2,softmax_precision=0 qk_matmul_output_mode=2,softmax_precision=1 qk_matmul_output_mode=2,softmax_precision=11 qk_matmul_output_mode=3 softmax_precision=0 softmax_precision=1 softmax_precision=11 | 4
Attention | 23 | f16,f16,f16>f16 | 000 | - is_causal=1 | 3
Attention | 23 | f32,f32,f32,f32,f32,f32>f32,f32,f32,f32 | 000000 011111 100000 | - qk_matmul_output_mode=1 qk_matmul_output_mode=1,softmax_precision=0 qk_matmul_output_mode=1,softmax_precision=1 qk_matmul_output_mode=1,softmax_precision=11 qk_matmul_output_mode=2 qk_matmul_output_mode=2,softmax_precision=0 qk_matmul_output_mode=2,softmax_precision=1 qk_matmul_output_mode=2,softmax_precision=11 qk_matmul_output_mode=3 | 4
Attention | 23 | f32,f32,f32,f32>f32 | 0000 0111 1000 | - | 4
Attention | 23 | f32,f32,f32>f32 | 000 011 100 | - | 3 4
Attention | 23 | f32,f32,f32>f32,-,-,f32 | 000 011 100 | - | 4
Attention | 24 25 | f16,f16,f16,f16,-,-,i64>f16 f32,f32,f32,f32,-,-,i64>f32 | 0111001 | - is_causal=1 is_causal=1,left_window_size=1 is_causal=1,left_window_size=2,qk_matmul_output_mode=1 is_causal=1,left_window_size=2,qk_matmul_output_mode=2 is_causal=1,left_window_size=2,qk_matmul_output_mode=3 is_causal=1,left_window_size=2,right_window_size=2 is_causal=1,left_window_size=2,softmax_precision=1 is_causal=1,left_window_size=2,softmax_precision=11 is_causal=1,qk_matmul_output_mode=1 is_causal=1,qk_matmul_output_mode=2 is_causal=1,qk_matmul_output_mode=3 is_causal=1,softmax_precision=0 is_causal=1,softmax_precision=1 is_causal=1,softmax_precision=11 left_window_size=2 | 4
Attention | 24 | bf16,bf16,bf16,bf16,-,-,i64>bf16 | 0111001 | - is_causal=1 | 4
Attention | 24 | f16,f16,f16,-,-,-,i64>f16 | 0000000 0110001 1000000 | - is_causal=1 is_causal=1,qk_matmul_output_mode=1 is_causal=1,qk_matmul_output_mode=2 is_causal=1,qk_matmul_output_mode=3 is_causal=1,softmax_precision=0 is_causal=1,softmax_precision=1 is_causal=1,softmax_precision=11 | 4
Attention | 24 | f16,f16,f16,-,f16,f16>f16,f16,f16 f32,f32,f32,-,f32,f32>f32,f32,f32 | 000000 | is_causal=1 | 4
Attention | 24 | f16,f16,f16,bool,-,-,i64>f16 f32,f32,f32,bool,-,-,i64>f32 | 0111001 | - is_causal=1 is_causal=1,qk_matmul_output_mode=1 is_causal=1,qk_matmul_output_mode=2 is_causal=1,qk_matmul_output_mode=3 is_causal=1,softmax_precision=0 is_causal=1,softmax_precision=1 is_causal=1,softmax_precision=11 | 4
Attention | 24 | f32,f32,f32,-,-,-,i64>f32 | 0000000 0000001 0110001 1000000 | - is_causal=1 is_causal=1,qk_matmul_output_mode=1 is_causal=1,qk_matmul_output_mode=2 is_causal=1,qk_matmul_output_mode=3 is_causal=1,softmax_precision=0 is_causal=1,softmax_precision=1 is_causal=1,softmax_precision=11 | 4
AveragePool | 7 10 11 19 22 | f16>f16 | 0 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1 auto_pad=SAME_LOWER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_LOWER,count_include_pad=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=SAME_UPPER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_UPPER,count_include_pad=1 ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4
AveragePool | 7 10 11 19 22 | f32>f32 | 0 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1,count_include_pad=1 ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4
BatchNormalization | 14 15 | f32,f32,f32,f32,f32>f32,f32,f32 | 00000 01111 10000 | training_mode=1 | 4
BatchNormalization | 15 | f16,f16,f16,f16,f16>f16,f16,f16 | 00000 01111 | training_mode=1 | 4
BatchNormalization | 7 9 14 15 | f16,f16,f16,f16,f16>f16 f32,f32,f32,f32,f32>f32 | 00000 01111 10000 | - | 3 4
BitShift | 11 28 | u32,u32>u32 u64,u64>u64 | 01 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | i16,i16>i16 i32,i32>i32 i64,i64>i64 u8,u8>u8 | 01 | direction=LEFT direction=RIGHT | 1 2 3 4 5 6 7
BitShift | 28 | i8,i8>i8 | 01 | direction=RIGHT | 2 3 4 5 6 7
BitShift | 28 | u16,u16>u16 | 01 | direction=RIGHT | 1
Cast | 13 19 21 23 24 25 28 | bf16>f32 | 0 | - | 1 2 3 4 5 6 7
Cast | 19 21 23 24 25 28 | float8e4m3fn>f16 float8e4m3fn>f32 | 0 | - | 2
Cast | 24 25 28 | float8e8m0>f16 float8e8m0>f32 | 0 | - | 2
Cast | 25 28 | f16>float8e4m3fn f16>float8e5m2 f32>float8e4m3fn f32>float8e5m2 | 0 | saturate=0 | 2
Cast | 25 28 | f32>bf16 float8e5m2>f16 float8e5m2>f32 | 0 | - | 2
Cast | 28 | f16>bool f32>bool | 0 | - | 0 1
Cast | 6 9 13 19 21 23 24 25 28 | bool>bool bool>f16 bool>f32 bool>i32 bool>i64 bool>i8 bool>u8 f16>f16 f16>f32 f16>i32 f16>i64 f32>f16 f32>f32 f32>i32 f32>i64 i32>bool i32>f16 i32>f32 i32>i32 i32>i64 i64>bool i64>f16 i64>f32 i64>i32 i64>i64 i8>bool i8>f16 i8>f32 i8>i32 i8>i64 i8>i8 u8>bool u8>f16 u8>f32 u8>i32 u8>i64 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
Cast | 6 9 13 19 21 23 24 25 28 | f16>i8 f16>u8 f32>i8 f32>u8 | 0 | - | 0 1 2 3 4 5 6
CastLike | 15 19 21 23 24 25 | bf16,f32>f32 bool,bool>bool bool,f16>f16 bool,f32>f32 f16,f16>f16 f16,f32>f32 f32,f16>f16 f32,f32>f32 | 01 | - | 2
CastLike | 15 19 21 23 24 25 | bool,i32>i32 bool,i64>i64 bool,i8>i8 bool,u8>u8 f32,i32>i32 | 01 | - | 1 2 3 4 5 6 7
CastLike | 15 19 21 23 24 25 | f16,i8>i8 f16,u8>u8 f32,i8>i8 f32,u8>u8 | 01 | - | 1 2 3 4 5 6
CastLike | 19 21 23 24 25 | float8e4m3fn,f16>f16 float8e4m3fn,f32>f32 | 01 | - | 2
CastLike | 25 | f16,float8e4m3fn>float8e4m3fn f16,float8e5m2>float8e5m2 f32,float8e4m3fn>float8e4m3fn f32,float8e5m2>float8e5m2 | 01 | saturate=0 | 2
CastLike | 25 | f16,i32>i32 f16,i64>i64 f32,i64>i64 | 01 | - | 1
CastLike | 25 | f32,bf16>bf16 float8e5m2,f16>f16 float8e5m2,f32>f32 | 01 | - | 2
CastLike | 25 | i32,i32>i32 i32,i64>i64 i64,i32>i32 i64,i64>i64 | 01 | - | 1 2
Ceil | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Celu | 12 28 | f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
CenterCropPad | 18 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - | 3
Clip | 11 12 13 | f16,-,f16>f16 f32,-,f32>f32 | 000 001 100 | - | 0 1 2 3 4 5 6 7
Clip | 11 12 13 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - | 0 1 2 3 4 5 6 7
Clip | 11 12 13 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Clip | 12 13 | i32,-,i32>i32 i64,-,i64>i64 i8,-,i8>i8 u8,-,u8>u8 | 000 001 100 | - | 0 1 2 3 4 5 6 7
Clip | 12 13 | i32,i32,i32>i32 i64,i64,i64>i64 i8,i8,i8>i8 u8,u8,u8>u8 | 000 011 100 | - | 0 1 2 3 4 5 6 7
Clip | 12 13 | i32,i32>i32 i64,i64>i64 i8,i8>i8 u8,u8>u8 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Clip | 12 13 | i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
Clip | 6 11 12 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Concat | 4 11 13 | bool*>bool f16*>f16 f32*>f32 i32*>i32 i64*>i64 i8*>i8 u8*>u8 | 0 1 | - | 1 2 3 4 5 6 7
Constant | 1 9 11 12 13 19 21 23 24 25 | >f32 |  | - | 2
Conv | 1 11 22 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID | 3 4 5
Conv | 1 11 22 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID | 3 4
ConvTranspose | 1 11 22 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - | 4
ConvTranspose | 1 11 22 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 3 4 5
Cos | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Cosh | 9 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
CumSum | 11 14 | f32,i32>f32 f32,i64>f32 i32,i32>i32 i32,i64>i32 i64,i32>i64 i64,i64>i64 | 01 | - exclusive=1 exclusive=1,reverse=1 reverse=1 | 1 2 3 4 5 6 7
CumSum | 14 | f16,i32>f16 f16,i64>f16 | 01 | - exclusive=1 exclusive=1,reverse=1 reverse=1 | 1 2 3 4 5 6 7
DepthToSpace | 1 11 13 28 | f16>f16 f32>f32 | 0 | - mode=CRD | 4
DepthToSpace | 11 13 28 | i8>i8 u8>u8 | 0 | - mode=CRD | 4
DepthToSpace | 28 | bool>bool i32>i32 i64>i64 | 0 | - mode=CRD | 4
DequantizeLinear | 10 13 19 21 23 24 25 28 | u8,f32,u8>f32 | 000 001 011 100 | - block_size=2 | 0 1 2 3 4 5 6 7
DequantizeLinear | 10 13 19 21 23 24 25 | i32,f32,i32>f32 | 000 001 011 100 | - block_size=1 | 0 1 2 3 4 5 6 7
DequantizeLinear | 10 13 19 21 23 24 25 | i8,f32,i8>f32 | 000 001 011 100 | - | 0 1 2 3 4 5 6 7
DequantizeLinear | 13 19 21 23 24 25 | i32,f32>f32 i8,f32>f32 u8,f32>f32 | 00 01 10 | - | 1
DequantizeLinear | 19 21 23 24 25 28 | float8e4m3fn,f16>f16 float8e5m2,f32>f32 | 00 01 10 | - | 1
DequantizeLinear | 19 21 23 24 25 28 | float8e4m3fn,f32,float8e4m3fn>f32 | 000 011 100 | - | 1
DequantizeLinear | 19 21 23 24 25 28 | float8e4m3fn,f32>f32 | 00 01 10 | - | 1 2 3 4 5 6 7
DequantizeLinear | 19 21 23 24 25 | i32,f16,i32>f16 | 000 001 011 100 | - block_size=1 | 0 1 2 5 6 7
DequantizeLinear | 19 21 23 24 25 | i32,f16>f16 i8,f16>f16 u8,f16>f16 | 00 01 10 | - | 1
DequantizeLinear | 19 21 23 24 25 | i8,f16,i8>f16 u8,f16,u8>f16 | 000 001 011 100 | - block_size=1 | 0 1 2 3 4 5 6 7
DequantizeLinear | 21 23 24 25 28 | i16,f32,i16>f32 u16,f32,u16>f32 | 000 001 011 100 | - | 1
Div | 13 14 | i32,i32>i32 | 01 | - | 0 1 2 3 4 5 6 7
Div | 14 | i16,i16>i16 u16,u16>u16 | 01 | - | 3
Div | 14 | i8,i8>i8 u8,u8>u8 | 01 | - | 0 1 2 3 4 5 6
Div | 7 13 14 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Div | 7 13 14 | i64,i64>i64 | 01 | - | 0 1 2 3 4 5 6 7
Div | 7 13 14 | u32,u32>u32 u64,u64>u64 | 01 | - | 3
Dropout | 12 13 22 | f16,f16>f16,bool f32,f32>f32,bool | 01 10 | - | 3
Dropout | 12 13 22 | f16>f16,bool | 0 | - | 1 2 3 4 5 6 7
Dropout | 12 13 22 | f32>f32,bool | 0 | - | 3
Dropout | 22 | f32,f32>f32 | 01 10 | - | 3
Dropout | 7 10 12 13 22 | f16>f16 f32>f32 | 0 | - ratio=0.20000000298023224 | 0 1 2 3 4 5 6 7
Einsum | 12 28 | f16*>f16 f32*>f32 | 0 1 | equation=-> equation=...ii->...i equation=bij;bjk->bik equation=i;i equation=ij->i equation=ij->ji | 0 1 2 3 4 5 6 7
Einsum | 28 | bf16*>bf16 | 0 1 | equation=bij;bjk->bik equation=ij->i equation=ij->ji | 2 3
Elu | 6 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Equal | 11 13 19 | f16,f16>bool f32,f32>bool i8,i8>bool u8,u8>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
Equal | 11 13 19 | i16,i16>bool u16,u16>bool u32,u32>bool u64,u64>bool | 00 01 10 | - | 3
Equal | 7 11 13 19 | bool,bool>bool i32,i32>bool i64,i64>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
Erf | 9 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Exp | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Expand | 8 13 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - | 2 3 4 5 6 7
EyeLike | 9 22 | f16>f16 f16>f32 f16>i32 f16>i64 f32>f32 f32>i32 f32>i64 i32>f32 i32>i32 i32>i64 i64>f32 i64>i32 i64>i64 | 0 | - | 2
Flatten | 1 9 11 13 21 23 24 25 | f16>f16 f32>f32 | 0 | - | 2 3 4 5 6 7
Flatten | 9 11 13 21 23 24 25 | bool>bool i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 2 3 4 5 6 7
Floor | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
GRU | 22 | f16,f16,f16,f16,-,f16>-,f16 | 000000 | linear_before_reset=1 | 3
GRU | 22 | f16,f16,f16,f16,-,f16>f16,f16 | 000000 011101 | - direction=reverse,linear_before_reset=1 linear_before_reset=1 | 4
GRU | 22 | f16,f16,f16,f16,i32,f16>-,f16 f32,f32,f32,f32,i32,f32>-,f32 | 000010 | linear_before_reset=1 | 3
GRU | 22 | f16,f16,f16,f16,i32,f16>f16 f32,f32,f32,f32,i32,f32>f32 | 000010 | linear_before_reset=1 | 4
GRU | 22 | f16,f16,f16>-,f16 | 000 011 | - direction=bidirectional direction=reverse linear_before_reset=1 | 3
GRU | 22 | f16,f16,f16>f16 | 000 | direction=bidirectional direction=reverse | 4
GRU | 22 | f32,f32,f32,f32,i32,f32>f32,f32 | 000010 011111 | - direction=reverse,linear_before_reset=1 | 4
GRU | 22 | f32,f32,f32>f32 | 000 | direction=bidirectional | 4
GRU | 22 | f32,f32,f32>f32,f32 | 000 011 100 | - direction=bidirectional,linear_before_reset=1 direction=reverse direction=reverse,linear_before_reset=1 | 4
GRU | 7 14 22 | f16,f16,f16,f16,-,f16>f16 f32,f32,f32,f32,-,f32>f32 | 000000 011101 100000 | direction=bidirectional direction=bidirectional,linear_before_reset=1 linear_before_reset=1 | 4
GRU | 7 14 22 | f16,f16,f16,f16,i32,f16>f16,f16 | 000010 011111 | - direction=reverse,linear_before_reset=1 linear_before_reset=1 | 4
GRU | 7 14 22 | f16,f16,f16,f16>-,f16 f32,f32,f32,f32>-,f32 | 0000 0111 1000 | - direction=reverse linear_before_reset=1 | 3
GRU | 7 14 22 | f16,f16,f16>f16,f16 | 000 011 100 | - direction=bidirectional direction=bidirectional,linear_before_reset=1 direction=reverse direction=reverse,linear_before_reset=1 | 4
GRU | 7 14 22 | f32,f32,f32,f32,-,f32>-,f32 | 000000 011101 100000 | direction=bidirectional,linear_before_reset=1 linear_before_reset=1 | 3
GRU | 7 14 22 | f32,f32,f32,f32,-,f32>f32,f32 | 000000 011101 100000 | - direction=bidirectional direction=bidirectional,linear_before_reset=1 direction=reverse direction=reverse,linear_before_reset=1 linear_before_reset=1 | 4
GRU | 7 14 22 | f32,f32,f32>-,f32 | 000 011 100 | - direction=bidirectional direction=reverse linear_before_reset=1 | 3
Gather | 1 11 13 | bool,i32>bool bool,i64>bool f16,i32>f16 f16,i64>f16 f32,i32>f32 f32,i64>f32 i32,i32>i32 i32,i64>i32 i64,i32>i64 i64,i64>i64 i8,i32>i8 i8,i64>i8 u8,i32>u8 u8,i64>u8 | 00 01 10 | - | 1 2 3 4 5 6 7 8 9 10 11 12 13
GatherElements | 11 13 | bool,i32>bool bool,i64>bool f16,i32>f16 f16,i64>f16 f32,i32>f32 f32,i64>f32 i32,i32>i32 i32,i64>i32 i64,i32>i64 i64,i64>i64 i8,i32>i8 i8,i64>i8 u8,i32>u8 u8,i64>u8 | 00 01 10 | - | 1 2 3 4 5 6 7
GatherND | 11 12 13 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 00 01 10 | - | 1 2 3 4 5 6 7 8
Gelu | 20 | f16>f16 f32>f32 | 0 | - approximate=tanh | 0 1 2 3 4 5 6 7
Gemm | 11 13 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 2
Gemm | 7 9 11 13 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - transA=1 transA=1,transB=1 transB=1 | 2
GlobalAveragePool | 1 22 | f16>f16 f32>f32 | 0 | - | 3 4 5
GlobalMaxPool | 1 22 | f16>f16 f32>f32 | 0 | - | 3 4 5
Greater | 7 9 13 | f16,f16>bool f32,f32>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
Greater | 9 13 | i16,i16>bool u16,u16>bool u32,u32>bool u64,u64>bool | 00 01 10 | - | 3
Greater | 9 13 | i32,i32>bool i64,i64>bool i8,i8>bool u8,u8>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
GreaterOrEqual | 12 16 | f16,f16>bool f32,f32>bool i32,i32>bool i64,i64>bool i8,i8>bool u8,u8>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
GreaterOrEqual | 12 16 | i16,i16>bool u16,u16>bool u32,u32>bool u64,u64>bool | 00 01 10 | - | 3
GroupNormalization | 21 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - | 4
HardSigmoid | 6 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
HardSwish | 14 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Hardmax | 1 11 13 | f16>f16 f32>f32 | 0 | - | 1 2 3 4 5 6 7
Identity | 1 13 14 16 19 21 23 24 25 | bool>bool f16>f16 f32>f32 i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
InstanceNormalization | 6 22 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - | 4
IsInf | 10 20 | f32>bool | 0 | - detect_negative=0 detect_negative=0,detect_positive=0 detect_positive=0 | 0 1 2 3 4 5 6 7
IsInf | 20 | f16>bool | 0 | - detect_negative=0 detect_negative=0,detect_positive=0 detect_positive=0 | 0 1 2 3 4 5 6 7
IsNaN | 9 13 20 | f16>bool f32>bool | 0 | - | 0 1 2 3 4 5 6 7
LSTM | 14 | f32,f32,f32,f32,-,f32,f32>-,f32,f32 | 0000000 0111011 1000000 | - | 3
LSTM | 22 | f16,f16,f16,f16,-,f16,f16>-,-,f16 f16,f16,f16,f16,-,f16,f16>-,f16 f16,f16,f16,f16,-,f16,f16>-,f16,f16 f32,f32,f32,f32,-,f32,f32>-,-,f32 f32,f32,f32,f32,-,f32,f32>-,f32 | 0000000 | direction=bidirectional | 3
LSTM | 22 | f16,f16,f16,f16,-,f16,f16>f16,-,f16 f16,f16,f16,f16,-,f16,f16>f16,f16 f32,f32,f32,f32,-,f32,f32>f32,-,f32 f32,f32,f32,f32,-,f32,f32>f32,f32 | 0000000 | direction=bidirectional | 4
LSTM | 22 | f16,f16,f16,f16,i32,f16,f16>-,-,f16 f16,f16,f16,f16,i32,f16,f16>-,f16 f16,f16,f16,f16,i32,f16,f16>-,f16,f16 f32,f32,f32,f32,i32,f32,f32>-,-,f32 f32,f32,f32,f32,i32,f32,f32>-,f32 f32,f32,f32,f32,i32,f32,f32>-,f32,f32 | 0000100 | - | 3
LSTM | 22 | f16,f16,f16,f16,i32,f16,f16>f16 f16,f16,f16,f16,i32,f16,f16>f16,-,f16 f16,f16,f16,f16,i32,f16,f16>f16,f16 f32,f32,f32,f32,i32,f32,f32>f32 f32,f32,f32,f32,i32,f32,f32>f32,-,f32 f32,f32,f32,f32,i32,f32,f32>f32,f32 | 0000100 | - | 4
LSTM | 22 | f16,f16,f16>-,-,f16 f32,f32,f32>-,-,f32 | 000 | direction=bidirectional | 3
LSTM | 22 | f16,f16,f16>-,f16 | 000 011 | - direction=bidirectional direction=reverse | 3
LSTM | 22 | f16,f16,f16>f16,f16 f32,f32,f32>f32,f32 | 000 011 | - | 4
LSTM | 7 14 22 | f16,f16,f16,f16,-,f16,f16>f16 | 0000000 0111011 | - direction=bidirectional direction=reverse | 4
LSTM | 7 14 22 | f16,f16,f16,f16,-,f16,f16>f16,f16,f16 | 0000000 0111011 1000000 | direction=bidirectional | 4
LSTM | 7 14 22 | f16,f16,f16,f16,i32,f16,f16>f16,f16,f16 | 0000100 0111111 | - direction=reverse | 4
LSTM | 7 14 22 | f16,f16,f16,f16>-,f16 f32,f32,f32,f32>-,f32 | 0000 0111 1000 | - direction=reverse | 3
LSTM | 7 14 22 | f16,f16,f16>-,f16,f16 f32,f32,f32>-,f32 f32,f32,f32>-,f32,f32 | 000 011 100 | - direction=bidirectional direction=reverse | 3
LSTM | 7 14 22 | f32,f32,f32,f32,-,f32,f32>f32,f32,f32 | 0000000 0111011 1000000 | - direction=bidirectional direction=reverse | 4
LSTM | 7 14 22 | f32,f32,f32,f32,i32,f32,f32>f32,f32,f32 | 0000100 0111111 | - direction=bidirectional direction=reverse | 4
LSTM | 7 14 22 | f32,f32,f32,f32>f32 f32,f32,f32,f32>f32,f32 | 0000 0111 1000 | - | 4
LSTM | 7 14 22 | f32,f32,f32,f32>f32,f32,f32 | 0000 0111 1000 | - direction=bidirectional | 4
LSTM | 7 14 | f32,f32,f32,f32,-,f32,f32>f32 | 0000000 0111011 1000000 | - direction=bidirectional direction=reverse | 4
LayerNormalization | 17 | f16,f16,f16>f16 | 000 | - | 1 2
LayerNormalization | 17 | f16,f16,f16>f16,-,f32 f16,f16,f16>f16,f32 f32,f32,f32>f32,-,f32 f32,f32,f32>f32,f32 | 000 | - | 2
LayerNormalization | 17 | f16,f16,f16>f16,f32,f32 f32,f32,f32>f32,f32,f32 | 000 011 100 | - | 1 2 3 4 5 6 7
LayerNormalization | 17 | f32,f32,f32>f32 | 000 011 100 | - | 2 3
LeakyRelu | 6 16 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Less | 7 9 13 | f16,f16>bool f32,f32>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
Less | 9 13 | i16,i16>bool u16,u16>bool u32,u32>bool u64,u64>bool | 00 01 10 | - | 3
Less | 9 13 | i32,i32>bool i64,i64>bool i8,i8>bool u8,u8>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
LessOrEqual | 12 16 | f16,f16>bool f32,f32>bool i32,i32>bool i64,i64>bool i8,i8>bool u8,u8>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
LessOrEqual | 12 16 | i16,i16>bool u16,u16>bool u32,u32>bool u64,u64>bool | 00 01 10 | - | 3
Log | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
LogSoftmax | 1 11 13 | f16>f16 f32>f32 | 0 | - | 1 2 3 4 5 6 7
LpPool | 2 11 18 22 | f16>f16 | 0 | - auto_pad=SAME_LOWER,ceil_mode=1,p=4 auto_pad=SAME_LOWER,p=3 auto_pad=SAME_LOWER,p=4 auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=SAME_UPPER,p=3 auto_pad=SAME_UPPER,p=4 ceil_mode=1 ceil_mode=1,p=3 ceil_mode=1,p=4 p=3 p=4 | 3 4 5
LpPool | 2 11 18 22 | f32>f32 | 0 | - auto_pad=SAME_LOWER,ceil_mode=1,p=4 auto_pad=SAME_LOWER,p=3 auto_pad=SAME_LOWER,p=4 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=SAME_UPPER,p=3 auto_pad=SAME_UPPER,p=4 ceil_mode=1 ceil_mode=1,p=3 ceil_mode=1,p=4 p=3 p=4 | 3 4 5
MatMul | 1 9 13 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 1 2 3 4 5 6 7
Max | 12 13 | i32*>i32 i8*>i8 u8*>u8 | 0 1 | - | 0 1 2 3 4 5 6 7
Max | 12 13 | i64*>i64 | 0 1 | - | 0 1 3 4 5 6 7
Max | 12 13 | u32*>u32 u64*>u64 | 0 1 | - | 1
Max | 13 | i16*>i16 u16*>u16 | 0 1 | - | 1
Max | 6 8 12 13 | f16*>f16 f32*>f32 | 0 1 | - | 0 1 2 3 4 5 6 7
MaxPool | 1 8 10 11 12 22 | f16>f16 f32>f32 | 0 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1 auto_pad=SAME_LOWER,storage_order=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=SAME_UPPER,storage_order=1 auto_pad=VALID auto_pad=VALID,ceil_mode=1 ceil_mode=1,storage_order=1 storage_order=1 | 3 4 5
MaxPool | 12 22 | f32>f32,i64 | 0 | - auto_pad=VALID,storage_order=1 storage_order=1 | 4
MaxPool | 12 22 | i8>i8 u8>u8 | 0 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1 auto_pad=SAME_LOWER,storage_order=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=SAME_UPPER,storage_order=1 auto_pad=VALID auto_pad=VALID,ceil_mode=1 ceil_mode=1,storage_order=1 storage_order=1 | 3 4 5
MaxPool | 22 | f16>f16,i64 i8>i8,i64 u8>u8,i64 | 0 | - auto_pad=VALID,storage_order=1 storage_order=1 | 4
Mean | 6 8 13 | f16*>f16 f32*>f32 | 0 1 | - | 0 1 2 3 4 5 6 7
MeanVarianceNormalization | 9 13 | f32>f32 | 0 | - | 4 5 6 7
MeanVarianceNormalization | 9 | f16>f16 | 0 | - | 4
Min | 12 13 | i32*>i32 i64*>i64 i8*>i8 u8*>u8 | 0 1 | - | 0 1 2 3 4 5 6 7
Min | 12 13 | u32*>u32 u64*>u64 | 0 1 | - | 1
Min | 13 | i16*>i16 u16*>u16 | 0 1 | - | 1
Min | 6 8 12 13 | f16*>f16 f32*>f32 | 0 1 | - | 0 1 2 3 4 5 6 7
Mish | 18 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Mod | 10 13 28 | f16,f16>f16 | 00 01 10 | fmod=1 | 1 2 3
Mod | 10 13 28 | f32,f32>f32 | 00 01 10 | fmod=1 | 1 2 3 4 5 6 7
Mod | 10 13 28 | i32,i32>i32 u8,u8>u8 | 01 | - fmod=1 | 0 1 2 3 4 5 6 7
Mod | 10 13 28 | u16,u16>u16 u32,u32>u32 u64,u64>u64 | 01 | - | 1
Mod | 28 | i64,i64>i64 i8,i8>i8 | 01 | - fmod=1 | 0 1 2 3 4 5 6 7
Mul | 14 | u8,u8>u8 | 01 | - | 0 1 2 3 4 5 6 7
Mul | 7 13 14 | f16,f16>f16 f32,f32>f32 i32,i32>i32 i64,i64>i64 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Mul | 7 13 14 | u32,u32>u32 u64,u64>u64 | 00 01 10 | - | 3
Neg | 6 13 | f16>f16 f32>f32 i32>i32 i64>i64 | 0 | - | 0 1 2 3 4 5 6 7
NegativeLogLikelihoodLoss | 12 13 22 | f16,i32,f16>f16 f16,i64,f16>f16 f32,i32,f32>f32 f32,i64,f32>f32 | 000 010 011 100 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=-5,reduction=none ignore_index=-5,reduction=sum ignore_index=0 ignore_index=0,reduction=none ignore_index=0,reduction=sum ignore_index=1 ignore_index=1,reduction=none ignore_index=1,reduction=sum ignore_index=10 ignore_index=10,reduction=none ignore_index=10,reduction=sum reduction=none reduction=sum | 2 3 4 5 6 7
NegativeLogLikelihoodLoss | 12 13 22 | f16,i32>f16 f16,i64>f16 f32,i32>f32 f32,i64>f32 | 00 01 10 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=-5,reduction=none ignore_index=-5,reduction=sum ignore_index=0 ignore_index=0,reduction=none ignore_index=0,reduction=sum ignore_index=1 ignore_index=1,reduction=none ignore_index=1,reduction=sum ignore_index=10 ignore_index=10,reduction=none ignore_index=10,reduction=sum reduction=none reduction=sum | 2 3 4 5 6 7
Not | 1 | bool>bool | 0 | - | 0 1 2 3 4 5 6 7
OneHot | 11 28 | f16,i64,i64>i64 f32,i64,i64>i64 | 011 | - | 2
OneHot | 11 28 | i64,i64,i64>i64 | 011 | - | 2 3 4 5 6 7 8
Or | 7 | bool,bool>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
PRelu | 16 | f16,f16>f16 f32,f32>f32 | 00 | - | 0 2 4 5 6 7
Pad | 11 13 18 19 21 23 24 25 | f16,i64,f16>f16 f32,i64,f32>f32 i32,i64,i32>i32 i64,i64,i64>i64 i8,i64,i8>i8 u8,i64,u8>u8 | 011 | - mode=edge mode=reflect | 3 4
Pad | 11 13 18 19 21 23 24 25 | f16,i64>f16 f32,i64>f32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - mode=edge mode=reflect | 2 3 4
Pad | 11 13 18 19 21 23 24 25 | i32,i64>i32 | 01 | - mode=edge mode=reflect | 4
Pad | 13 18 19 21 23 24 25 | bool,i64,bool>bool | 011 | - mode=edge mode=reflect | 3 4
Pad | 13 18 19 21 23 24 25 | bool,i64>bool | 01 | - mode=edge mode=reflect | 2 3 4
Pad | 2 | f16>f16 f32>f32 | 0 | - mode=edge mode=reflect | 2 3 4
Pow | 12 13 15 | f16,f32>f16 f16,i32>f16 f16,i64>f16 f32,f16>f32 f32,i32>f32 f32,i64>f32 i32,f16>i32 i32,f32>i32 i64,f16>i64 i64,f32>i64 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Pow | 15 | f32,u32>f32 f32,u64>f32 | 00 01 10 | - | 1
Pow | 7 12 13 15 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 0 1 2 3 4 5 6 7
QLinearConv | 10 | i8,f32,i8,i8,f32,i8,f32,i8>i8 u8,f32,u8,u8,f32,u8,f32,u8>u8 | 00000000 00100101 01111111 10000000 | - | 4 5
QLinearMatMul | 10 21 | i8,f32,i8,i8,f32,i8,f32,i8>i8 u8,f32,u8,u8,f32,u8,f32,u8>u8 | 00000000 00100101 01111111 10000000 | - | 2 3 4 5 6 7
QLinearMatMul | 21 | i8,f16,i8,i8,f16,i8,f16,i8>i8 u8,f16,u8,u8,f16,u8,f16,u8>u8 | 00000000 00100101 01111111 10000000 | - | 2 3 4 5 6 7
QuantizeLinear | 10 13 19 21 23 24 25 28 | f32,f32,u8>u8 | 000 001 011 100 | - block_size=2 block_size=2,precision=1 block_size=2,saturate=0 precision=1 saturate=0 | 0 1 2 3 4 5 6 7
QuantizeLinear | 10 13 19 21 23 24 25 | f32,f32,i8>i8 | 000 001 011 100 | - precision=1 saturate=0 | 0 1 2 3 4 5 6 7
QuantizeLinear | 19 21 23 24 25 | f16,f16,i8>i8 | 000 001 011 100 | - precision=1 saturate=0 | 0 1 2 3 5 6 7
QuantizeLinear | 19 21 23 24 25 | f16,f16,u8>u8 | 000 001 011 100 | - precision=1 saturate=0 | 0 1 2 3
QuantizeLinear | 21 23 24 25 28 | f32,f32,i16>i16 | 000 001 011 100 | - | 1
RMSNormalization | 23 | f16,f16>f16 f32,f32>f32 | 00 01 10 | - | 1 2 3 4 5 6 7
RNN | 22 | f16,f16,f16,f16,-,f16>-,f16 f32,f32,f32,f32,-,f32>-,f32 | 000000 | - | 3
RNN | 22 | f16,f16,f16,f16,-,f16>f16 f32,f32,f32,f32,-,f32>f32 | 000000 | - | 4
RNN | 22 | f16,f16,f16>f16,f16 f32,f32,f32>f32,f32 | 000 011 | - | 4
RNN | 7 14 22 | f16,f16,f16,f16,-,f16>f16,f16 | 000000 011101 100000 | - direction=reverse | 4
RNN | 7 14 22 | f16,f16,f16,f16>-,f16 f32,f32,f32,f32>-,f32 | 0000 0111 1000 | - direction=reverse | 3
RNN | 7 14 22 | f16,f16,f16>-,f16 f32,f32,f32>-,f32 | 000 011 100 | - direction=bidirectional direction=reverse | 3
RNN | 7 14 22 | f32,f32,f32,f32,-,f32>f32,f32 | 000000 011101 100000 | - direction=bidirectional direction=reverse | 4
Reciprocal | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
ReduceL1 | 1 11 | f16>f16 | 0 | keepdims=0 | 3
ReduceL1 | 1 11 | f32>f32 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ReduceL1 | 18 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceL2 | 1 11 13 | f16>f16 | 0 | keepdims=0 | 3
ReduceL2 | 1 11 13 | f32>f32 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ReduceL2 | 18 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceLogSum | 1 11 | f16>f16 | 0 | keepdims=0 | 3
ReduceLogSum | 1 11 | f32>f32 | 0 | - keepdims=0 | 2 3 4 5 6 7
ReduceLogSum | 18 28 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceLogSumExp | 1 11 | f16>f16 f32>f32 | 0 | keepdims=0 | 3
ReduceLogSumExp | 18 28 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceMax | 1 11 12 13 18 | f16>f16 f32>f32 i32>i32 i64>i64 | 0 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6 7
ReduceMax | 13 18 | i8>i8 u8>u8 | 0 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6 7
ReduceMax | 18 20 | f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceMax | 20 | bool,i64>bool | 01 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceMean | 1 11 13 | f16>f16 | 0 | - keepdims=0 | 0 1 2 3 4 5 6 7
ReduceMean | 1 11 13 | f32>f32 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ReduceMean | 18 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceMin | 1 11 12 13 18 | f16>f16 f32>f32 i32>i32 i64>i64 | 0 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6 7
ReduceMin | 13 18 | i8>i8 u8>u8 | 0 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6 7
ReduceMin | 18 20 | f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceMin | 20 | bool,i64>bool | 01 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceProd | 1 11 13 18 | f16>f16 f32>f32 | 0 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6 7
ReduceProd | 18 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceProd | 18 | i32>i32 i64>i64 | 0 | noop_with_empty_axes=1 | 3
ReduceSum | 1 11 | f16>f16 i32>i32 i64>i64 | 0 | keepdims=0 | 3
ReduceSum | 1 11 | f32>f32 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ReduceSum | 13 | f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceSumSquare | 1 11 13 | f16>f16 | 0 | keepdims=0 | 3
ReduceSumSquare | 1 11 13 | f32>f32 | 0 | - keepdims=0 | 1 2 3 4 5 6 7
ReduceSumSquare | 18 | f16,i64>f16 f32,i64>f32 | 01 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 1 2 3 4 5 6 7
ReduceSumSquare | 18 | i32,i64>i32 i64,i64>i64 | 01 | - | 1
Relu | 14 | i32>i32 i8>i8 | 0 | - | 0 1 2 3 4 5 6 7
Relu | 6 13 14 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Reshape | 1 | f16>f16 f32>f32 | 0 | - | 1 2 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | bool,i64>bool f16,i64>f16 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - allowzero=1 | 1 2 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | f32,i64>f32 | 01 | - allowzero=1 | 2 3 4 5
Resize | 10 | f16,f32>f16 | 01 | mode=linear | 4
Resize | 10 | f32,f32>f32 | 01 | - mode=linear | 4
Resize | 11 13 18 19 | f16,f16,f32>f16 f32,f32,f32>f32 | 011 | coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=asymmetric coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=floor coordinate_transformation_mode=asymmetric,mode=linear,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=ceil coordinate_transformation_mode=asymmetric,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=floor nearest_mode=floor | 4
Resize | 13 18 19 | f16,-,-,i64>f16 f32,-,-,i64>f32 | 0001 | - coordinate_transformation_mode=align_corners coordinate_transformation_mode=align_corners,mode=cubic coordinate_transformation_mode=align_corners,mode=cubic,nearest_mode=floor coordinate_transformation_mode=align_corners,mode=linear coordinate_transformation_mode=align_corners,mode=linear,nearest_mode=floor coordinate_transformation_mode=align_corners,nearest_mode=ceil coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=align_corners,nearest_mode=round_prefer_ceil coordinate_transformation_mode=asymmetric coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=round_prefer_ceil coordinate_transformation_mode=asymmetric,mode=linear coordinate_transformation_mode=asymmetric,mode=linear,nearest_mode=round_prefer_ceil coordinate_transformation_mode=asymmetric,nearest_mode=ceil coordinate_transformation_mode=asymmetric,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel coordinate_transformation_mode=pytorch_half_pixel,mode=cubic coordinate_transformation_mode=pytorch_half_pixel,mode=linear coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=ceil coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=floor coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=ceil coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=floor coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=round_prefer_ceil mode=cubic mode=cubic,nearest_mode=ceil mode=cubic,nearest_mode=floor mode=cubic,nearest_mode=round_prefer_ceil mode=linear mode=linear,nearest_mode=ceil nearest_mode=ceil nearest_mode=floor nearest_mode=round_prefer_ceil | 4
Resize | 13 18 19 | f16,-,f32>f16 | 001 | - antialias=1,coordinate_transformation_mode=asymmetric,mode=cubic antialias=1,mode=linear coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=asymmetric coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=ceil coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=floor coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=round_prefer_ceil coordinate_transformation_mode=asymmetric,mode=linear coordinate_transformation_mode=asymmetric,mode=linear,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=ceil coordinate_transformation_mode=asymmetric,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel,mode=cubic coordinate_transformation_mode=pytorch_half_pixel,mode=linear coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=floor mode=cubic mode=linear mode=linear,nearest_mode=ceil mode=linear,nearest_mode=floor mode=linear,nearest_mode=round_prefer_ceil nearest_mode=floor | 4
Resize | 13 18 19 | f32,-,f32>f32 | 001 | - antialias=1,coordinate_transformation_mode=asymmetric,mode=cubic antialias=1,mode=linear coordinate_transformation_mode=align_corners,mode=cubic coordinate_transformation_mode=align_corners,mode=linear coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=asymmetric coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=ceil coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=floor coordinate_transformation_mode=asymmetric,mode=cubic,nearest_mode=round_prefer_ceil coordinate_transformation_mode=asymmetric,mode=linear,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=ceil coordinate_transformation_mode=asymmetric,nearest_mode=floor coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel,nearest_mode=floor mode=cubic mode=linear mode=linear,nearest_mode=ceil mode=linear,nearest_mode=floor mode=linear,nearest_mode=round_prefer_ceil nearest_mode=floor | 4
Resize | 19 | f16,f16,-,i64>f16 f32,f32,-,i64>f32 | 0001 0101 | coordinate_transformation_mode=align_corners,mode=linear coordinate_transformation_mode=asymmetric,mode=linear coordinate_transformation_mode=pytorch_half_pixel,mode=linear mode=linear | 4
RotaryEmbedding | 23 | f16,f16,f16,i64>f16 f32,f32,f32,i64>f32 | 0000 0111 1000 | - interleaved=1 interleaved=1,rotary_embedding_dim=4 rotary_embedding_dim=4 | 3 4
RotaryEmbedding | 23 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 100 | - interleaved=1 interleaved=1,rotary_embedding_dim=4 rotary_embedding_dim=4 | 4
Round | 11 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
STFT | 17 | f16,i32,-,i32>f16 f16,i64,-,i64>f16 f32,i32,-,i32>f32 f32,i64,-,i64>f32 | 0101 | - onesided=0 | 4
STFT | 17 | f16,i32,f16>f16 f16,i64,f16>f16 f32,i32,f32>f32 f32,i64,f32>f32 | 010 011 | - | 4
Scatter | 9 | bool,i32,bool>bool bool,i64,bool>bool f16,i32,f16>f16 f16,i64,f16>f16 f32,i32,f32>f32 f32,i64,f32>f32 i32,i32,i32>i32 i32,i64,i32>i32 i64,i32,i64>i64 i64,i64,i64>i64 i8,i32,i8>i8 i8,i64,i8>i8 u8,i32,u8>u8 u8,i64,u8>u8 | 000 011 100 | - | 1 2 3 4 5 6 7
ScatterElements | 11 13 16 18 | bool,i32,bool>bool bool,i64,bool>bool | 000 011 100 | - reduction=add reduction=mul | 1 2 3 4 5 6 7
ScatterElements | 11 13 16 18 | f16,i32,f16>f16 f16,i64,f16>f16 | 000 011 100 | - reduction=max reduction=min | 1 2 3 4 5 6 7
ScatterElements | 11 13 16 18 | f32,i32,f32>f32 f32,i64,f32>f32 | 000 011 100 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4 5 6 7
ScatterElements | 11 13 16 18 | i32,i32,i32>i32 i32,i64,i32>i32 i64,i32,i64>i64 i64,i64,i64>i64 i8,i32,i8>i8 i8,i64,i8>i8 u8,i32,u8>u8 u8,i64,u8>u8 | 000 011 100 | - | 1 2 3 4 5 6 7
ScatterND | 11 13 16 18 | bool,i64,bool>bool | 000 011 100 | - reduction=add reduction=mul | 2 3
ScatterND | 11 13 16 18 | f16,i64,f16>f16 i32,i64,i32>i32 i64,i64,i64>i64 i8,i64,i8>i8 u8,i64,u8>u8 | 000 011 100 | - | 3
ScatterND | 11 13 16 18 | f32,i64,f32>f32 | 000 011 100 | - reduction=add reduction=max reduction=min reduction=mul | 2 3
Selu | 6 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Shape | 1 13 15 19 21 23 24 25 | bool>i64 f16>i64 f32>i64 f64>i64 i32>i64 i64>i64 i8>i64 u8>i64 | 0 | - end=-1 end=-1,start=-10 end=-1,start=1 end=1 end=1,start=-10 end=10 end=10,start=-1 end=10,start=-10 end=10,start=1 end=10,start=2 end=2 end=2,start=-10 end=2,start=1 start=-1 start=-10 start=1 start=2 | 1 2 3 4 5 6 7
Shrink | 9 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Shrink | 9 | i32>i32 i64>i64 | 0 | - | 0 2 3 4 5 6 7
Sigmoid | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Sign | 9 13 | f16>f16 f32>f32 i32>i32 i64>i64 i8>i8 | 0 | - | 0 1 2 3 4 5 6 7
Sin | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Sinh | 9 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Size | 1 13 19 21 23 24 25 | bool>i64 f16>i64 f32>i64 f64>i64 i32>i64 i64>i64 i8>i64 u8>i64 | 0 | - | 0 1 2 3 4 5 6 7
Slice | 1 | bool>bool f16>f16 f32>f32 i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 1 2 3 4 5 6 7
Slice | 10 11 13 | bool,i32,i32,i32,i32>bool bool,i64,i64,i64,i64>bool f16,i32,i32,i32,i32>f16 f16,i64,i64,i64,i64>f16 f32,i32,i32,i32,i32>f32 f32,i64,i64,i64,i64>f32 i32,i32,i32,i32,i32>i32 i32,i64,i64,i64,i64>i32 i64,i32,i32,i32,i32>i64 i64,i64,i64,i64,i64>i64 i8,i32,i32,i32,i32>i8 i8,i64,i64,i64,i64>i8 u8,i32,i32,i32,i32>u8 u8,i64,i64,i64,i64>u8 | 01111 | - | 1 2 3 4 5 6 7
Slice | 10 11 13 | bool,i32,i32,i32>bool bool,i64,i64,i64>bool f16,i32,i32,i32>f16 f16,i64,i64,i64>f16 f32,i32,i32,i32>f32 f32,i64,i64,i64>f32 i32,i32,i32,i32>i32 i32,i64,i64,i64>i32 i64,i32,i32,i32>i64 i64,i64,i64,i64>i64 i8,i32,i32,i32>i8 i8,i64,i64,i64>i8 u8,i32,i32,i32>u8 u8,i64,i64,i64>u8 | 0111 | - | 1 2 3 4 5 6 7
Slice | 10 11 13 | bool,i32,i32>bool bool,i64,i64>bool f16,i32,i32>f16 f16,i64,i64>f16 f32,i32,i32>f32 f32,i64,i64>f32 i32,i32,i32>i32 i32,i64,i64>i32 i64,i32,i32>i64 i64,i64,i64>i64 i8,i32,i32>i8 i8,i64,i64>i8 u8,i32,i32>u8 u8,i64,i64>u8 | 011 | - | 3 4 5
Softmax | 1 11 13 | f16>f16 f32>f32 | 0 | - | 1 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 12 13 | f16,i32,f16>f16 f16,i64,f16>f16 f32,i32,f32>f32 f32,i64,f32>f32 | 000 010 011 100 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=0 ignore_index=0,reduction=none ignore_index=0,reduction=sum ignore_index=1 ignore_index=1,reduction=none ignore_index=1,reduction=sum ignore_index=10 ignore_index=10,reduction=none ignore_index=10,reduction=sum ignore_index=2 ignore_index=2,reduction=none ignore_index=2,reduction=sum reduction=none reduction=sum | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 12 13 | f16,i32>f16 f16,i64>f16 f32,i32>f32 f32,i64>f32 | 00 01 10 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=-5,reduction=none ignore_index=-5,reduction=sum ignore_index=0 ignore_index=0,reduction=none ignore_index=0,reduction=sum ignore_index=1 ignore_index=1,reduction=none ignore_index=1,reduction=sum ignore_index=10 ignore_index=10,reduction=none ignore_index=10,reduction=sum ignore_index=2 ignore_index=2,reduction=none ignore_index=2,reduction=sum reduction=none reduction=sum | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 12 13 | f32,i64,f32>f32,f32 | 000 010 011 100 | - ignore_index=-1 ignore_index=0 ignore_index=1 ignore_index=10,reduction=sum ignore_index=2 reduction=none | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 12 13 | f32,i64>f32,f32 | 00 01 10 | - ignore_index=-5,reduction=none ignore_index=2 reduction=none reduction=sum | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 13 | f16,i32,f16>f16,f16 f16,i64,f16>f16,f16 f32,i32,f32>f32,f32 | 000 011 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=0 ignore_index=1 ignore_index=10 ignore_index=2 | 3
Softplus | 1 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Softsign | 1 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
SpaceToDepth | 1 13 28 | f16>f16 f32>f32 i8>i8 u8>u8 | 0 | - | 4
SpaceToDepth | 28 | bool>bool i32>i32 i64>i64 | 0 | - | 4
Split | 13 18 | bool,i64>bool* f16,i64>f16* f32,i64>f32* i32,i64>i32* i64,i64>i64* i8,i64>i8* u8,i64>u8* | 01 | - | 1 2 3 4 5 6 7
Split | 2 11 13 18 | bool>bool* f16>f16* f32>f32* i32>i32* i64>i64* i8>i8* u8>u8* | 0 | - | 1 2 3 4 5 6 7
Sqrt | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Squeeze | 1 11 13 | bool>bool f16>f16 f32>f32 i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
Squeeze | 13 21 23 24 25 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - | 1 2 3 4 5 6 7
Sub | 14 | u8,u8>u8 | 01 | - | 0 1 2 3
Sub | 7 13 14 | f16,f16>f16 f32,f32>f32 i32,i32>i32 i64,i64>i64 | 00 01 10 | - | 0 1 2 3 4 5 6 7
Sub | 7 13 14 | u32,u32>u32 u64,u64>u64 | 00 01 10 | - | 3
Sum | 6 8 13 | f16*>f16 f32*>f32 | 0 1 | - | 0 1 2 3 4 5 6 7
Swish | 24 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Tan | 7 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Tanh | 6 13 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
ThresholdedRelu | 10 22 | f16>f16 f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
Tile | 6 13 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - | 2 3 4
TopK | 10 11 24 | f16,i64>f16,i64 f32,i64>f32,i64 | 01 | - largest=0 | 1 2 3 4 5 6 7
TopK | 11 24 | i32,i64>i32,i64 i64,i64>i64,i64 i8,i64>i8,i64 u8,i64>u8,i64 | 01 | - largest=0 | 1 2 3 4 5 6 7
TopK | 24 | u64,i64>u64,i64 | 01 | - | 2
Transpose | 1 13 21 23 24 25 | bool>bool f16>f16 f32>f32 i32>i32 i64>i64 i8>i8 u8>u8 | 0 | - | 0 1 2 3 4 5 6 7
Trilu | 14 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 | 01 | - upper=0 | 2 3 4 5 6 7
Trilu | 14 | bool>bool f16>f16 f32>f32 i32>i32 i64>i64 | 0 | - upper=0 | 2 3 4 5 6 7
Unsqueeze | 1 11 | bool>bool f16>f16 i32>i32 i8>i8 u8>u8 | 0 | - | 2 3 4 5
Unsqueeze | 1 11 | f32>f32 i64>i64 | 0 | - | 1 2 3 4 5 6 7 8
Unsqueeze | 13 21 23 24 25 | bool,i64>bool f16,i64>f16 f32,i64>f32 i32,i64>i32 i64,i64>i64 i8,i64>i8 u8,i64>u8 | 01 | - | 1 2 3 4 5 6 7 8
Upsample | 7 | f16>f16 f32>f32 | 0 | - | 4
Upsample | 9 | f16,f32>f16 f32,f32>f32 | 01 | - | 4
Where | 9 16 | bool,f16,f16>f16 bool,f32,f32>f32 | 000 011 100 | - | 0 1 2 3 4 5 6 7
Where | 9 16 | bool,i32,i32>i32 bool,i64,i64>i64 bool,i8,i8>i8 bool,u8,u8>u8 | 000 001 010 011 100 | - | 0 1 2 3 4 5 6 7
Xor | 7 | bool,bool>bool | 00 01 10 | - | 0 1 2 3 4 5 6 7
com.microsoft.Attention | 0 | f32,f32,f32>f32 | 000 011 100 | - | 3
com.microsoft.BiasGelu | 0 | f32,f32>f32 | 00 01 10 | - | 1 2 3 4 5 6 7
com.microsoft.FastGelu | 0 | f32,f32>f32 | 00 01 10 | - | 1 2 3 4 5 6 7
com.microsoft.FusedConv | 0 | f32,f32,f32>f32 | 000 011 100 | activation=Relu | 4
com.microsoft.FusedGemm | 0 | f32,f32,f32>f32 | 000 011 100 | activation=Relu | 2
com.microsoft.FusedMatMul | 0 | f32,f32>f32 | 00 01 10 | - | 2 3 4 5 6 7
com.microsoft.Gelu | 0 | f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
com.microsoft.QuickGelu | 0 | f32>f32 | 0 | - | 0 1 2 3 4 5 6 7
com.microsoft.SkipLayerNormalization | 0 | f32,f32,f32,f32,f32>f32 | 00000 01111 10000 | - | 2 3
"""
