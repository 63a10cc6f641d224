"""The layers that OPENVINO claims on devices of the kind CPU. Written by `make claims`; do not
edit. `table` explains the lines.
"""

from typing import Final

VERSION: Final = "2026.4.1"
"""The OpenVINO that computed them right, on: AMD EPYC."""

REFERENCE: Final = "onnx 1.23.2, ONNX Runtime 1.31.1"
"""What said what is right."""

ALLOWED: Final = """
Abs | 6 13 | f16>f16 | 0 1 | - | 2 3 4 5
Abs | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Abs | 6 13 | i32>i32 | 0 1 | - | 1 2 3 4 5 6
Abs | 6 13 | i64>i64 | 0 1 | - | 1 2 3 4 5 6
Abs | 6 13 | i8>i8 | 1 | - | 3
Abs | 6 13 | u8>u8 | 0 1 | - | 2 3 4 5
Acos | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Acos | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Acosh | 9 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Acosh | 9 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Add | 14 | i16,i16>i16 | 11 | - | 3
Add | 14 | i32,i32>i32 | 00 01 10 11 | - | 2
Add | 14 | i64,i64>i64 | 00 01 10 11 | - | 1 2
Add | 14 | i8,i8>i8 | 11 | - | 3
Add | 14 | u16,u16>u16 | 11 | - | 3
Add | 14 | u32,u32>u32 | 00 01 10 11 | - | 2 3 4 5
Add | 14 | u64,u64>u64 | 00 01 10 11 | - | 3
Add | 14 | u8,u8>u8 | 11 | - | 3
Add | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
AffineGrid | 20 | f32,i64>f32 | 01 11 | - align_corners=1 | 4 5
And | 7 | bool,bool>bool | 00 01 10 11 | - | 0 1 2 3 4 5 6
ArgMax | 1 11 12 13 | f16>i64 | 0 1 | - | 1 2 3 4
ArgMax | 1 11 12 13 | f32>i64 | 0 1 | - keepdims=0 keepdims=0,select_last_index=1 select_last_index=1 | 1 2 3 4 5 6
ArgMax | 1 11 12 13 | i32>i64 | 0 1 | - keepdims=0 select_last_index=1 | 1 2 3 4
ArgMax | 1 11 12 13 | i64>i64 | 0 1 | - keepdims=0 select_last_index=1 | 1 2 3 4
ArgMax | 1 11 12 | i8>i64 | 0 1 | - | 2 3
ArgMax | 1 11 12 | u8>i64 | 0 1 | - | 2 3
ArgMin | 1 11 12 13 | f16>i64 | 0 1 | - | 1 2 3 4
ArgMin | 1 11 12 13 | f32>i64 | 0 1 | - keepdims=0 keepdims=0,select_last_index=1 select_last_index=1 | 1 2 3 4 5 6
ArgMin | 1 11 12 13 | i32>i64 | 0 1 | - keepdims=0 select_last_index=1 | 1 2 3 4
ArgMin | 1 11 12 13 | i64>i64 | 0 1 | - keepdims=0 select_last_index=1 | 1 2 3 4
ArgMin | 1 11 12 | i8>i64 | 0 1 | - | 2 3
ArgMin | 1 11 12 | u8>i64 | 0 1 | - | 2 3
Asin | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Asin | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Asinh | 9 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Asinh | 9 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Atan | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Atan | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Atanh | 9 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Atanh | 9 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Attention | 23 24 25 | f32,f32,f32>f32 | 000 011 100 111 | - is_causal=1 | 3 4
Attention | 23 24 | f32,f32,f32,bool>f32 | 0000 1111 | - is_causal=1 | 4
Attention | 23 24 | f32,f32,f32,bool>f32,-,-,f32 | 0000 0111 1000 1111 | qk_matmul_output_mode=3 | 4
Attention | 23 | bf16,bf16,bf16,bf16>bf16 | 1111 | is_causal=1 | 4
Attention | 23 | bf16,bf16,bf16>bf16 | 111 | is_causal=1 | 3 4
Attention | 23 | f16,f16,f16,f16,f16,f16>f16,f16,f16 | 111111 | - | 4
Attention | 23 | f16,f16,f16>f16 | 111 | - is_causal=1 | 4
Attention | 23 | f32,f32,f32,f32,f32,f32>f32,f32,f32 | 111111 | - | 4
Attention | 23 | f32,f32,f32,f32,f32,f32>f32,f32,f32,f32 | 000000 011111 100000 111111 | - qk_matmul_output_mode=1 qk_matmul_output_mode=2 qk_matmul_output_mode=3 | 4
Attention | 23 | f32,f32,f32,f32>f32 | 0000 0111 1000 1111 | - is_causal=1 | 3 4
Attention | 23 | f32,f32,f32,f32>f32,-,-,f32 | 0000 0111 1000 1111 | qk_matmul_output_mode=1 qk_matmul_output_mode=2 qk_matmul_output_mode=3 | 4
Attention | 23 | f32,f32,f32>f32,-,-,f32 | 000 011 100 111 | - | 4
Attention | 24 | bf16,bf16,bf16,bf16,-,-,i64>bf16 | 0111001 1111001 | - is_causal=1 | 4
Attention | 24 | f16,f16,f16,-,-,-,i64>f16 | 0000000 0000001 0110001 1000000 1110001 | is_causal=1 | 4
Attention | 24 | f16,f16,f16,bool>f16,-,-,f16 | 0111 1111 | qk_matmul_output_mode=3,softmax_precision=1 | 4
Attention | 24 | f32,f32,f32,-,-,-,i64>f32 | 0000000 0000001 0110001 1000000 1110001 | is_causal=1 | 4
Attention | 24 | f32,f32,f32,-,f32,f32>f32,f32,f32 | 111011 | is_causal=1 | 4
Attention | 24 | f32,f32,f32,bool,-,-,i64>f32 | 0111001 1111001 | is_causal=1 | 4
Attention | 24 | f32,f32,f32,f32,-,-,i64>f32 | 0111001 1111001 | - | 4
Attention | 25 | f16,f16,f16,f16,-,-,i64>f16 | 0111001 1111001 | is_causal=1,left_window_size=2 | 4
AveragePool | 7 10 11 19 22 | f16>f16 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4
AveragePool | 7 10 11 19 22 | f32>f32 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_LOWER,count_include_pad=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_UPPER,count_include_pad=1 ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4 5
BatchNormalization | 15 | f32,f32,f32,f32,f32>f32,f32,f32 | 00000 01111 10000 11111 | training_mode=1 | 4
BatchNormalization | 7 9 14 15 | f32,f32,f32,f32,f32>f32 | 00000 01111 10000 11111 | - | 3 4
BatchNormalization | 7 9 14 | f16,f16,f16,f16,f16>f16 | 00000 01111 10000 11111 | - | 4
BitShift | 28 | i16,i16>i16 | 01 11 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | i32,i32>i32 | 01 11 | direction=LEFT | 1
BitShift | 28 | i64,i64>i64 | 01 11 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | i8,i8>i8 | 01 | direction=LEFT | 1
BitShift | 28 | u16,u16>u16 | 01 11 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | u32,u32>u32 | 01 11 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | u64,u64>u64 | 01 11 | direction=LEFT direction=RIGHT | 1
BitShift | 28 | u8,u8>u8 | 01 11 | direction=LEFT direction=RIGHT | 1
BitwiseAnd | 18 | i16,i16>i16 | 11 | - | 3
BitwiseAnd | 18 | i32,i32>i32 | 11 | - | 3
BitwiseAnd | 18 | i64,i64>i64 | 11 | - | 3
BitwiseAnd | 18 | u8,u8>u8 | 11 | - | 4
BitwiseNot | 18 | i64>i64 | 1 | - | 3
BitwiseNot | 18 | i8>i8 | 1 | - | 2
BitwiseNot | 18 | u16>u16 | 1 | - | 3
BitwiseNot | 18 | u8>u8 | 1 | - | 2 3 4
BitwiseOr | 18 | i32,i32>i32 | 11 | - | 4
BitwiseOr | 18 | i64,i64>i64 | 11 | - | 4
BitwiseOr | 18 | i8,i8>i8 | 11 | - | 4
BitwiseOr | 18 | u8,u8>u8 | 11 | - | 4
BitwiseXor | 18 | i16,i16>i16 | 11 | - | 3
BitwiseXor | 18 | i32,i32>i32 | 11 | - | 2 3
BitwiseXor | 18 | i64,i64>i64 | 11 | - | 3
BitwiseXor | 18 | u8,u8>u8 | 11 | - | 4
BlackmanWindow | 17 | i32>f32 | 1 | - periodic=0 | 1
BlackmanWindow | 17 | i64>f32 | 1 | - periodic=0 | 1
Cast | 13 19 21 23 24 25 28 | bf16>f32 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 28 | f16>f32 | 0 1 | - | 2 3
Cast | 13 19 21 23 24 25 28 | f32>f16 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | bool>bool | 0 1 | - | 2 3
Cast | 13 19 21 23 24 25 | bool>f32 | 0 1 | - | 2 3
Cast | 13 19 21 23 24 25 | bool>i32 | 0 1 | - | 2
Cast | 13 19 21 23 24 25 | f32>bool | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | f32>f32 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | f32>i32 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | f32>i64 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | f32>u8 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | i32>f32 | 0 1 | - | 2 3
Cast | 13 19 21 23 24 25 | i64>bool | 0 1 | - | 2
Cast | 13 19 21 23 24 25 | i64>f32 | 0 1 | - | 1 2 3 4
Cast | 13 19 21 23 24 25 | i8>f32 | 0 1 | - | 2
Cast | 13 | f32>i8 | 0 1 | - | 1 2 3 4
Cast | 21 23 24 25 28 | i4>f16 | 1 | - | 2
Cast | 25 28 | f16>float8e4m3fn | 0 1 | saturate=0 | 2
Cast | 25 28 | f16>float8e5m2 | 0 1 | saturate=0 | 2
Cast | 25 28 | f32>bf16 | 0 1 | - | 2
Cast | 25 28 | f32>float8e4m3fn | 0 1 | saturate=0 | 2
Cast | 25 28 | f32>float8e5m2 | 0 1 | saturate=0 | 2
Cast | 25 28 | f64>f16 | 1 | - | 2
Cast | 25 28 | f64>f32 | 1 | - | 2
Cast | 25 28 | float4e2m1>f16 | 1 | - | 2
Cast | 25 28 | float4e2m1>f32 | 1 | - | 2
Cast | 25 28 | float8e4m3fn>f16 | 0 1 | - | 2
Cast | 25 28 | float8e4m3fn>f32 | 0 1 | - | 2
Cast | 25 28 | float8e5m2>f16 | 0 1 | - | 2
Cast | 25 28 | float8e5m2>f32 | 0 1 | - | 2
Cast | 25 28 | i4>f32 | 1 | - | 2
Cast | 25 28 | i4>i8 | 1 | - | 2
Cast | 25 28 | u4>f16 | 1 | - | 2
Cast | 25 28 | u4>f32 | 1 | - | 2
Cast | 25 28 | u4>u8 | 1 | - | 2
Cast | 25 | bool>i64 | 0 1 | - | 2
Cast | 25 | i32>i64 | 0 1 | - | 2
Cast | 25 | i64>i32 | 0 1 | - | 2
Cast | 25 | u8>f32 | 0 1 | - | 2
Cast | 28 | float8e8m0>f16 | 0 1 | - | 2
Cast | 28 | float8e8m0>f32 | 0 1 | - | 2
CastLike | 15 19 21 23 24 25 | bf16,f32>f32 | 01 11 | - | 2
CastLike | 25 | f16,f32>f32 | 01 11 | - | 2
CastLike | 25 | f16,float8e4m3fn>float8e4m3fn | 01 11 | saturate=0 | 2
CastLike | 25 | f16,float8e5m2>float8e5m2 | 01 11 | saturate=0 | 2
CastLike | 25 | f32,bf16>bf16 | 01 11 | - | 2
CastLike | 25 | f32,f16>f16 | 01 11 | - | 2
CastLike | 25 | f32,float8e4m3fn>float8e4m3fn | 01 11 | saturate=0 | 2
CastLike | 25 | f32,float8e5m2>float8e5m2 | 01 11 | saturate=0 | 2
CastLike | 25 | f64,f16>f16 | 11 | - | 2
CastLike | 25 | f64,f32>f32 | 11 | - | 2
CastLike | 25 | float4e2m1,f16>f16 | 11 | - | 2
CastLike | 25 | float4e2m1,f32>f32 | 11 | - | 2
CastLike | 25 | float8e4m3fn,f16>f16 | 01 11 | - | 2
CastLike | 25 | float8e4m3fn,f32>f32 | 01 11 | - | 2
CastLike | 25 | float8e5m2,f16>f16 | 01 11 | - | 2
CastLike | 25 | float8e5m2,f32>f32 | 01 11 | - | 2
CastLike | 25 | i4,f16>f16 | 11 | - | 2
CastLike | 25 | i4,f32>f32 | 11 | - | 2
CastLike | 25 | i4,i8>i8 | 11 | - | 2
CastLike | 25 | u4,f16>f16 | 11 | - | 2
CastLike | 25 | u4,f32>f32 | 11 | - | 2
CastLike | 25 | u4,u8>u8 | 11 | - | 2
Ceil | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Ceil | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Celu | 28 | f32>f32 | 0 1 | - | 4
CenterCropPad | 18 | f32,i64>f32 | 01 11 | - | 3
CenterCropPad | 18 | i64,i64>i64 | 01 11 | - | 3
Clip | 11 12 13 | f32,-,f32>f32 | 000 001 100 101 | - | 0 1 2 3 4 5
Clip | 11 12 13 | f32,f32,f32>f32 | 000 011 100 111 | - | 0 1 2 3 4 5
Clip | 11 12 13 | f32,f32>f32 | 00 01 10 11 | - | 3 4
Clip | 12 13 | i8,-,i8>i8 | 000 001 100 101 | - | 0 1 2 3 4 5
Clip | 12 13 | i8,i8>i8 | 00 01 10 11 | - | 0 1 2 3 4 5
Clip | 12 13 | i8>i8 | 0 1 | - | 0 1 2 3
Clip | 13 | i64,i64,i64>i64 | 011 111 | - | 0 1 2 3 4 5
Clip | 6 11 12 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Clip | 6 | f16>f16 | 0 1 | - | 1 2 3
Col2Im | 18 | f32,i64,i64>f32 | 111 | - | 4
Concat | 4 11 13 | f32*>f32 | 0 1 | - | 1 2 3 4
Concat | 4 11 13 | i64*>i64 | 0 1 | - | 1 2 3
Concat | 4 11 | bool*>bool | 0 1 | - | 1
Concat | 4 11 | f16*>f16 | 0 1 | - | 1
Concat | 4 11 | i32*>i32 | 0 1 | - | 1
Constant | 1 9 11 12 13 19 21 23 24 25 | >f32 |  | - | 2
ConstantOfShape | 9 20 21 23 24 25 | i64>f32 | 1 | - | 3
ConstantOfShape | 9 20 21 23 24 25 | i64>i32 | 1 | - | 2
Conv | 1 11 22 | f32,f32,f32>f32 | 000 011 100 111 | - auto_pad=SAME_UPPER auto_pad=VALID | 3 4 5
Conv | 1 11 22 | f32,f32>f32 | 00 01 10 11 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID | 3 4
ConvInteger | 10 | u8,u8,u8,u8>i32 | 1111 | - | 4
ConvInteger | 10 | u8,u8,u8>i32 | 111 | - | 4
ConvTranspose | 1 11 22 | f16,f16>f16 | 00 01 10 11 | - | 4
ConvTranspose | 1 11 22 | f32,f32,f32>f32 | 000 011 100 111 | - auto_pad=SAME_UPPER | 4
ConvTranspose | 1 11 22 | f32,f32>f32 | 00 01 10 11 | - auto_pad=SAME_UPPER | 3 4 5
Cos | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Cos | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Cosh | 9 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Cosh | 9 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
CumSum | 11 14 | f32,i32>f32 | 01 11 | - exclusive=1 reverse=1 | 1 2 3
CumSum | 11 14 | f32,i64>f32 | 01 11 | - exclusive=1 reverse=1 | 1 2 3
CumSum | 11 14 | i32,i32>i32 | 01 11 | - exclusive=1 exclusive=1,reverse=1 | 1 2 3
CumSum | 11 14 | i64,i64>i64 | 01 11 | - | 1 2 3
CumSum | 11 | i32,i64>i32 | 01 11 | - | 1
CumSum | 11 | i64,i32>i64 | 01 11 | - | 1
DFT | 17 | f16>f16 | 0 | - | 3 5 6
DFT | 17 | f32>f32 | 0 1 | inverse=1 | 4
DFT | 20 | f16,-,i64>f16 | 000 001 100 101 | - inverse=1 | 3 4 5 6
DFT | 20 | f32,-,i64>f32 | 001 | inverse=1 | 4
DepthToSpace | 1 11 13 28 | f32>f32 | 0 1 | - mode=CRD | 4
DepthToSpace | 1 11 | f16>f16 | 0 1 | - mode=CRD | 4
DepthToSpace | 11 | i8>i8 | 0 1 | - mode=CRD | 4
DepthToSpace | 11 | u8>u8 | 0 1 | - mode=CRD | 4
DequantizeLinear | 10 13 19 21 23 24 25 28 | u8,f32,u8>f32 | 000 001 011 100 111 | - block_size=2 | 0 1 2 3 4 5 6
DequantizeLinear | 13 19 21 23 24 | i32,f32,i32>f32 | 000 001 011 100 111 | - | 1 2 3 4 5
DequantizeLinear | 13 19 21 23 24 | i8,f32,i8>f32 | 000 001 011 100 111 | - | 2 3 4 5
DequantizeLinear | 19 21 23 24 25 28 | float8e4m3fn,f16>f16 | 00 01 10 11 | - | 1 2 3
DequantizeLinear | 19 21 23 24 25 28 | float8e5m2,f32>f32 | 00 01 10 11 | - | 1
DequantizeLinear | 21 | i32,f16,i32>f16 | 000 011 100 111 | - | 2
DequantizeLinear | 28 | float8e4m3fn,f32,float8e4m3fn>f32 | 000 011 100 111 | - | 1
DequantizeLinear | 28 | float8e4m3fn,f32>f32 | 00 01 10 11 | - | 1
DequantizeLinear | 28 | i16,f32,i16>f32 | 000 001 011 100 111 | - | 1
DequantizeLinear | 28 | u16,f32,u16>f32 | 000 001 011 100 111 | - | 1
Div | 14 | i16,i16>i16 | 01 11 | - | 3
Div | 14 | i64,i64>i64 | 01 11 | - | 1
Div | 14 | u16,u16>u16 | 01 11 | - | 3
Div | 14 | u32,u32>u32 | 01 11 | - | 3
Div | 14 | u64,u64>u64 | 01 11 | - | 3
Div | 14 | u8,u8>u8 | 01 | - | 3
Div | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
Div | 7 13 14 | i32,i32>i32 | 01 11 | - | 0 1
Dropout | 12 13 22 | f32,f16>f32,bool | 01 10 11 | - | 3
Dropout | 12 13 22 | f32,f32>f32,bool | 01 10 11 | - | 3
Dropout | 12 13 | f16,f16>f16,bool | 01 10 11 | - | 3
Dropout | 12 13 | f16,f32>f16,bool | 01 10 11 | - | 3
Dropout | 22 | f32,f32>f32 | 01 10 11 | - | 3
Dropout | 22 | f32>f32,bool | 0 1 | - | 3
Dropout | 7 10 12 13 22 | f16>f16 | 0 1 | - ratio=0.20000000298023224 | 0 1 2 3 4 5
Dropout | 7 10 12 13 22 | f32>f32 | 0 1 | - ratio=0.20000000298023224 | 0 1 2 3 4 5 6
Einsum | 28 | bf16*>bf16 | 0 1 | equation=bij;bjk->bik equation=ij->i equation=ij->ji | 2 3
Elu | 6 22 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
Elu | 6 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Equal | 11 13 19 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 13 19 | f32,f32>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 13 19 | i64,i64>bool | 00 01 10 11 | - | 0 1 3 4
Equal | 13 | bool,bool>bool | 00 01 10 11 | - | 1 2 3 4
Equal | 19 | u32,u32>bool | 00 01 10 11 | - | 3
Equal | 19 | u64,u64>bool | 00 01 10 11 | - | 3
Equal | 19 | u8,u8>bool | 00 01 10 11 | - | 3
Equal | 7 11 13 19 | i32,i32>bool | 00 01 10 11 | - | 0 1 3 4 5
Erf | 9 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Erf | 9 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Exp | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Exp | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Expand | 8 13 | bool,i64>bool | 01 11 | - | 3
Expand | 8 13 | f32,i64>f32 | 01 11 | - | 2 3 4
Expand | 8 13 | i32,i64>i32 | 01 11 | - | 2 3 4 5
Expand | 8 13 | i64,i64>i64 | 01 11 | - | 2 3 4
Expand | 8 | f16,i64>f16 | 01 11 | - | 3
Expand | 8 | u8,i64>u8 | 01 11 | - | 3
EyeLike | 9 22 | f32>f32 | 0 1 | - | 2
EyeLike | 9 22 | f32>i32 | 0 1 | - | 2
EyeLike | 9 22 | f32>i64 | 0 1 | - | 2
EyeLike | 9 22 | i32>f32 | 0 1 | - | 2
EyeLike | 9 22 | i32>i32 | 0 1 | - | 2
EyeLike | 9 | i32>i64 | 0 | - | 2
EyeLike | 9 | i64>f32 | 0 1 | - | 2
EyeLike | 9 | i64>i32 | 0 1 | - | 2
EyeLike | 9 | i64>i64 | 0 1 | - | 2
Flatten | 1 9 11 13 21 23 24 25 | f32>f32 | 0 1 | - | 2 3 4 5 6
Flatten | 1 9 11 13 21 23 24 | f16>f16 | 0 1 | - | 4
Flatten | 9 11 13 21 23 24 25 | bool>bool | 0 1 | - | 3 4 5 6
Flatten | 9 11 13 21 23 24 25 | i32>i32 | 0 1 | - | 3 4 5 6
Flatten | 9 11 13 21 23 24 25 | i64>i64 | 0 1 | - | 3 4 5 6
Flatten | 9 11 13 21 23 24 | i8>i8 | 0 1 | - | 4
Flatten | 9 11 13 21 23 24 | u8>u8 | 0 1 | - | 4
Floor | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Floor | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
GRU | 14 22 | f32,f32,f32>f32,f32 | 000 011 100 111 | - direction=bidirectional direction=reverse | 4
GRU | 22 | f32,f32,f32,f32,i32,f32>f32,f32 | 000010 011111 111111 | linear_before_reset=1 | 4
GRU | 22 | f32,f32,f32>-,f32 | 000 011 100 111 | - | 3
GRU | 7 14 22 | f32,f32,f32,f32,-,f32>f32 | 000000 011101 100000 111101 | direction=bidirectional direction=bidirectional,linear_before_reset=1 | 4
GRU | 7 14 22 | f32,f32,f32,f32,-,f32>f32,f32 | 000000 011101 100000 111101 | direction=bidirectional direction=bidirectional,linear_before_reset=1 direction=reverse linear_before_reset=1 | 4
GRU | 7 14 22 | f32,f32,f32,f32>-,f32 | 0000 0111 1000 1111 | - direction=reverse linear_before_reset=1 | 3
GRU | 7 | f16,f16,f16,f16,-,f16>f16 | 000000 011101 100000 111101 | direction=bidirectional,linear_before_reset=1 | 4
GRU | 7 | f32,f32,f32,f32,-,f32>-,f32 | 000000 011101 100000 111101 | direction=bidirectional,linear_before_reset=1 | 3
GRU | 7 | f32,f32,f32>f32 | 000 | direction=bidirectional | 4
Gather | 1 11 13 | f32,i32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
Gather | 1 11 13 | f32,i64>f32 | 00 01 10 11 | - | 1 2 3 4 5 6 7
Gather | 1 11 13 | i64,i64>i64 | 00 01 10 11 | - | 1 2 3
Gather | 13 | i8,i64>i8 | 00 01 10 11 | - | 3
Gather | 13 | u8,i64>u8 | 00 01 10 11 | - | 3
GatherElements | 11 13 | f32,i32>f32 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | f32,i64>f32 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | i64,i32>i64 | 00 01 10 11 | - | 2
GatherElements | 11 13 | i64,i64>i64 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 | bool,i32>bool | 00 01 10 11 | - | 2
GatherElements | 11 | bool,i64>bool | 00 01 10 11 | - | 2
GatherElements | 11 | f16,i32>f16 | 00 01 10 11 | - | 2
GatherElements | 11 | f16,i64>f16 | 00 01 10 11 | - | 2
GatherElements | 11 | i32,i32>i32 | 00 01 10 11 | - | 2
GatherElements | 11 | i32,i64>i32 | 00 01 10 11 | - | 2
GatherElements | 11 | u8,i64>u8 | 00 01 10 | - | 2
GatherND | 11 12 13 | bool,i64>bool | 00 01 10 11 | - | 2 3 4 5 6 7
GatherND | 11 12 13 | f32,i64>f32 | 00 01 10 11 | - | 2 3 4 5
GatherND | 11 12 13 | i32,i64>i32 | 00 01 10 11 | - | 2 3 4 5
GatherND | 11 12 13 | i64,i64>i64 | 00 01 10 11 | - | 2 3 4 5
GatherND | 11 12 | f16,i64>f16 | 00 01 10 11 | - | 3
GatherND | 11 12 | u8,i64>u8 | 00 01 10 11 | - | 3
GatherND | 11 | i8,i64>i8 | 00 | - | 3
Gelu | 20 | f16>f16 | 0 1 | - approximate=tanh | 0 1 2 3 4 5
Gelu | 20 | f32>f32 | 0 1 | - approximate=tanh | 0 1 2 3 4 5
Gemm | 11 13 | f32,f32>f32 | 00 01 10 11 | - | 2
Gemm | 7 9 11 13 | f32,f32,f32>f32 | 000 011 100 111 | - transA=1 transA=1,transB=1 transB=1 | 2
Gemm | 7 | f16,f16,f16>f16 | 000 011 100 111 | transA=1,transB=1 | 2
GlobalAveragePool | 1 22 | f16>f16 | 0 1 | - | 3 4 5
GlobalAveragePool | 1 22 | f32>f32 | 0 1 | - | 3 4 5
GlobalMaxPool | 1 22 | f16>f16 | 0 1 | - | 3 4 5
GlobalMaxPool | 1 22 | f32>f32 | 0 1 | - | 3 4 5
Greater | 13 | u64,u64>bool | 00 01 10 11 | - | 3
Greater | 13 | u8,u8>bool | 00 01 10 11 | - | 3
Greater | 7 9 13 | f32,f32>bool | 00 01 10 11 | - | 2 3 4 5
Greater | 9 13 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
Greater | 9 13 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
Greater | 9 13 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
Greater | 9 13 | u32,u32>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 12 16 | f32,f32>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 12 16 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 12 16 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 12 16 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 12 16 | u32,u32>bool | 00 01 10 11 | - | 2 3 4 5
GreaterOrEqual | 16 | u64,u64>bool | 00 01 10 11 | - | 3
GreaterOrEqual | 16 | u8,u8>bool | 00 01 10 11 | - | 3
GridSample | 20 22 | f32,f16>f32 | 11 | - | 4
GridSample | 20 22 | f32,f32>f32 | 11 | - align_corners=1 align_corners=1,mode=cubic align_corners=1,mode=nearest mode=cubic mode=nearest padding_mode=border padding_mode=reflection | 4
GroupNormalization | 21 | f16,f16,f16>f16 | 000 011 100 111 | - | 4
GroupNormalization | 21 | f32,f32,f32>f32 | 000 011 100 111 | - | 4
HammingWindow | 17 | i32>f32 | 1 | - periodic=0 | 1
HammingWindow | 17 | i64>f32 | 1 | - periodic=0 | 1
HannWindow | 17 | i32>f32 | 1 | - periodic=0 | 1
HannWindow | 17 | i64>f32 | 1 | - periodic=0 | 1
HardSigmoid | 6 22 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
HardSigmoid | 6 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
HardSwish | 14 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
HardSwish | 14 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Hardmax | 1 11 13 | f16>f16 | 0 1 | - | 2 3 4 5
Hardmax | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | bool>bool | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i32>i32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i64>i64 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i8>i8 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | u8>u8 | 0 1 | - | 0 1 2 3 4 5 6
InstanceNormalization | 6 22 | f16,f16,f16>f16 | 000 011 100 111 | - | 4
InstanceNormalization | 6 22 | f32,f32,f32>f32 | 000 011 100 111 | - | 4 5 6
IsInf | 10 20 | f32>bool | 0 1 | - detect_negative=0 detect_negative=0,detect_positive=0 detect_positive=0 | 0 1 2 3 4 5 6
IsInf | 20 | f16>bool | 0 1 | - detect_negative=0 detect_positive=0 | 0 1 2 3
IsNaN | 9 13 20 | f16>bool | 0 1 | - | 0 1 2 3 4 5 6
IsNaN | 9 13 20 | f32>bool | 0 1 | - | 0 1 2 3 4 5 6
LRN | 1 13 | f16>f16 | 1 | - | 4
LRN | 1 13 | f32>f32 | 1 | - | 4
LSTM | 14 22 | f32,f32,f32>f32,f32 | 000 | - | 4
LSTM | 14 | f16,f16,f16,f16,-,f16,f16>f16 | 0000000 0111011 1000000 1111011 | direction=bidirectional | 4
LSTM | 14 | f32,f32,f32,f32,-,f32,f32>-,f32,f32 | 0000000 0111011 1000000 1111011 | - | 3
LSTM | 22 | f32,f32,f32,f32,i32,f32,f32>f32,f32,f32 | 0000100 0111111 1111111 | - direction=bidirectional | 4
LSTM | 22 | f32,f32,f32>-,f32,f32 | 000 011 100 111 | direction=bidirectional direction=reverse | 3
LSTM | 7 14 22 | f32,f32,f32,f32,-,f32,f32>f32,f32,f32 | 0000000 0111011 1000000 1111011 | - direction=bidirectional direction=reverse | 4
LSTM | 7 14 22 | f32,f32,f32,f32>-,f32 | 0000 0111 1000 1111 | - direction=reverse | 3
LSTM | 7 14 22 | f32,f32,f32,f32>f32 | 0000 0111 1000 1111 | - direction=reverse | 4
LSTM | 7 14 22 | f32,f32,f32,f32>f32,f32 | 0000 0111 1000 1111 | - | 4
LSTM | 7 14 22 | f32,f32,f32,f32>f32,f32,f32 | 0000 0111 1000 1111 | - direction=bidirectional | 4
LSTM | 7 14 22 | f32,f32,f32>-,f32 | 000 011 100 111 | - direction=reverse | 3
LSTM | 7 14 | f32,f32,f32,f32,-,f32,f32>f32 | 0000000 0111011 1000000 1111011 | - direction=bidirectional | 4
LayerNormalization | 17 | f16,f16,f16>f16,f32,f32 | 000 011 100 111 | - | 1 2
LayerNormalization | 17 | f32,f32,f32>f32 | 000 011 100 111 | - | 2 3
LayerNormalization | 17 | f32,f32,f32>f32,f32 | 000 | - | 2
LayerNormalization | 17 | f32,f32,f32>f32,f32,f32 | 000 011 100 111 | - | 1 2 3 4
LeakyRelu | 6 16 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
LeakyRelu | 6 16 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Less | 13 | i64,i64>bool | 00 01 10 11 | - | 2 3
Less | 13 | u64,u64>bool | 00 01 10 11 | - | 3
Less | 13 | u8,u8>bool | 00 01 10 11 | - | 3
Less | 7 9 13 | f32,f32>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | u32,u32>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 12 16 | f32,f32>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 12 16 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 12 16 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 12 16 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 12 16 | u32,u32>bool | 00 01 10 11 | - | 2 3 4 5
LessOrEqual | 16 | u64,u64>bool | 00 01 10 11 | - | 3
LessOrEqual | 16 | u8,u8>bool | 00 01 10 11 | - | 3
Log | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Log | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
LogSoftmax | 1 11 13 | f16>f16 | 0 1 | - | 2 3 4 5
LogSoftmax | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
LpNormalization | 1 22 | f16>f16 | 0 1 | - p=1 | 1 2 3
LpNormalization | 1 22 | f32>f32 | 0 1 | - p=1 | 1 2 3 4 5 6
LpPool | 2 11 18 22 | f16>f16 | 0 1 | - auto_pad=SAME_LOWER,p=3 auto_pad=SAME_UPPER,p=3 ceil_mode=1,p=3 p=3 p=4 | 3 4
LpPool | 2 11 18 22 | f32>f32 | 0 1 | - auto_pad=SAME_LOWER,p=3 auto_pad=SAME_LOWER,p=4 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,p=3 auto_pad=SAME_UPPER,p=4 ceil_mode=1,p=3 ceil_mode=1,p=4 p=3 p=4 | 3 4 5
MatMul | 1 9 13 | f16,f16>f16 | 00 01 10 11 | - | 1 2 3
MatMul | 1 9 13 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
MatMul | 9 13 | i32,i32>i32 | 11 | - | 1 2 3
MatMul | 9 13 | i64,i64>i64 | 11 | - | 1 2 3
MatMulInteger | 10 | i8,i8,i8,i8>i32 | 1111 | - | 2
MatMulInteger | 10 | i8,u8,i8,u8>i32 | 1111 | - | 2
MatMulInteger | 10 | u8,i8,u8,i8>i32 | 1111 | - | 2
MatMulInteger | 10 | u8,u8,u8,u8>i32 | 1111 | - | 2
Max | 13 | i16*>i16 | 0 1 | - | 1
Max | 13 | i32*>i32 | 0 1 | - | 1
Max | 13 | i64*>i64 | 0 1 | - | 1
Max | 13 | i8*>i8 | 0 1 | - | 1
Max | 13 | u16*>u16 | 0 1 | - | 1
Max | 13 | u32*>u32 | 0 1 | - | 1
Max | 13 | u64*>u64 | 0 1 | - | 1
Max | 13 | u8*>u8 | 0 1 | - | 1
Max | 6 8 12 13 | f16*>f16 | 0 1 | - | 0 1 2 3
Max | 6 8 12 13 | f32*>f32 | 0 1 | - | 0 1 2 3
MaxPool | 1 8 10 11 12 22 | f16>f16 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 storage_order=1 | 3 4
MaxPool | 1 8 10 11 12 22 | f32>f32 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 storage_order=1 | 3 4 5
MaxPool | 12 22 | u8>u8 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 storage_order=1 | 3 4
MaxPool | 12 | i8>i8 | 0 1 | - | 3
MaxPool | 8 10 11 12 22 | f32>f32,i64 | 0 1 | - storage_order=1 | 4
Mean | 6 8 13 | f16*>f16 | 0 1 | - | 0 1 2 3
Mean | 6 8 13 | f32*>f32 | 0 1 | - | 0 1 2 3 4 5
MeanVarianceNormalization | 9 13 | f32>f32 | 0 1 | - | 4 5 6
MeanVarianceNormalization | 9 | f16>f16 | 0 1 | - | 4
Min | 13 | i16*>i16 | 0 1 | - | 1
Min | 13 | i32*>i32 | 0 1 | - | 1
Min | 13 | i64*>i64 | 0 1 | - | 1
Min | 13 | i8*>i8 | 0 1 | - | 1
Min | 13 | u16*>u16 | 0 1 | - | 1
Min | 13 | u32*>u32 | 0 1 | - | 1
Min | 13 | u64*>u64 | 0 1 | - | 1
Min | 13 | u8*>u8 | 0 1 | - | 1
Min | 6 8 12 13 | f16*>f16 | 0 1 | - | 0 1 2 3
Min | 6 8 12 13 | f32*>f32 | 0 1 | - | 0 1 2 3
Mish | 18 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Mish | 18 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Mod | 10 13 28 | f16,f16>f16 | 00 01 10 11 | fmod=1 | 1
Mod | 10 13 28 | f32,f32>f32 | 00 01 10 11 | fmod=1 | 1
Mod | 10 13 28 | i32,i32>i32 | 01 11 | - fmod=1 | 1 2 3 4 5
Mod | 10 13 28 | i64,i64>i64 | 01 11 | - fmod=1 | 0 1
Mod | 28 | i16,i16>i16 | 11 | - | 1
Mod | 28 | i8,i8>i8 | 11 | - | 1
Mod | 28 | u16,u16>u16 | 01 11 | - | 1
Mod | 28 | u32,u32>u32 | 01 11 | - | 1
Mod | 28 | u64,u64>u64 | 01 11 | - | 1
Mod | 28 | u8,u8>u8 | 01 11 | - | 1
Mul | 14 | i16,i16>i16 | 11 | - | 3
Mul | 14 | i32,i32>i32 | 00 01 10 11 | - | 2
Mul | 14 | i64,i64>i64 | 00 01 10 11 | - | 1
Mul | 14 | i8,i8>i8 | 11 | - | 3
Mul | 14 | u16,u16>u16 | 11 | - | 3
Mul | 14 | u32,u32>u32 | 00 01 10 11 | - | 2 3 4 5
Mul | 14 | u64,u64>u64 | 00 01 10 11 | - | 3
Mul | 14 | u8,u8>u8 | 11 | - | 3
Mul | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 0 1 2 3 4 5
Neg | 6 13 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
Neg | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Neg | 6 13 | i32>i32 | 0 1 | - | 1 2 3 4 5 6
Neg | 6 13 | i64>i64 | 0 1 | - | 1 2 3 4 5 6
Neg | 6 13 | i8>i8 | 1 | - | 1 2 3
NegativeLogLikelihoodLoss | 12 13 22 | f32,i64,f32>f32 | 000 010 011 100 111 | - ignore_index=-1 ignore_index=0,reduction=sum ignore_index=1 ignore_index=10,reduction=sum reduction=none reduction=sum | 2 3 4 5 6 7
NegativeLogLikelihoodLoss | 12 13 22 | f32,i64>f32 | 00 01 10 11 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-5 ignore_index=-5,reduction=none ignore_index=0 ignore_index=0,reduction=none ignore_index=1 ignore_index=1,reduction=none ignore_index=10 ignore_index=10,reduction=none reduction=none reduction=sum | 2 3 4 5 6 7
Not | 1 | bool>bool | 0 1 | - | 0 1 2 3 4 5 6
OneHot | 28 | f32,f32,f32>f32 | 011 111 | - | 3
OneHot | 28 | i64,f32,bf16>bf16 | 011 111 | - | 2
OneHot | 28 | i64,f32,f32>f32 | 011 111 | - | 2
OneHot | 9 11 28 | i64,f32,i32>i32 | 011 111 | - | 2
Or | 7 | bool,bool>bool | 00 01 10 11 | - | 0 1 2 3 4 5 6
PRelu | 16 | f32,f32>f32 | 00 01 10 | - | 2 3 4 5
PRelu | 7 9 16 | f16,f16>f16 | 00 01 10 | - | 2 3 4 5
Pad | 11 13 18 19 21 23 24 25 | f32,i64,f32>f32 | 011 111 | - | 3 4
Pad | 11 13 18 19 21 23 24 25 | f32,i64>f32 | 01 11 | - mode=edge mode=reflect | 2 3 4
Pad | 11 13 18 19 21 23 24 25 | i32,i64>i32 | 01 11 | - mode=edge mode=reflect | 4
Pad | 11 13 | i64,i64,i64>i64 | 011 | - | 4
Pad | 18 19 21 23 24 25 | f32,i64,f32,i64>f32 | 0111 1111 | - | 4
Pad | 2 | f16>f16 | 0 1 | mode=edge mode=reflect | 4
Pad | 2 | f32>f32 | 0 1 | - mode=edge mode=reflect | 3 4
Pow | 12 13 15 | f32,i32>f32 | 00 01 10 11 | - | 0 1 2 3
Pow | 12 13 15 | f32,i64>f32 | 00 01 10 11 | - | 0 1 2 3 4 5
Pow | 15 | f32,u32>f32 | 00 01 10 11 | - | 1
Pow | 15 | f32,u64>f32 | 00 01 10 11 | - | 1
Pow | 15 | i32,f32>i32 | 00 01 10 11 | - | 1
Pow | 15 | i32,i32>i32 | 11 | - | 1
Pow | 15 | i64,f32>i64 | 00 01 10 11 | - | 1
Pow | 15 | i64,i64>i64 | 11 | - | 1
Pow | 7 12 13 15 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
QLinearConv | 10 | u8,f32,u8,i8,f32,i8,f32,u8>u8 | 00000000 00100101 01111111 10000000 11111111 | - | 4 5
QLinearConv | 10 | u8,f32,u8,u8,f32,u8,f32,u8>u8 | 00000000 00100101 01111111 10000000 11111111 | - | 4 5
QLinearMatMul | 10 21 | i8,f32,i8,i8,f32,i8,f32,i8>i8 | 00000000 00100101 01111111 10000000 11111111 | - | 2 3 4
QLinearMatMul | 21 | i8,f16,i8,i8,f16,i8,f16,i8>i8 | 00000000 00100101 01111111 10000000 11111111 | - | 2 3 4
QLinearMatMul | 21 | u8,f16,u8,u8,f16,u8,f16,u8>u8 | 00000000 00100101 01111111 10000000 11111111 | - | 2 3
QLinearMatMul | 21 | u8,f32,u8,u8,f32,u8,f32,u8>u8 | 00000000 00100101 01111111 10000000 11111111 | - | 2 3 4
QuantizeLinear | 10 13 19 23 24 25 28 | f32,f32,u8>u8 | 000 001 011 100 111 | - block_size=2 block_size=2,precision=1 block_size=2,saturate=0 precision=1 saturate=0 | 0 1 2 3 4
QuantizeLinear | 24 | f32,f32,i8>i8 | 000 001 011 100 111 | - | 3
QuantizeLinear | 28 | f32,f32,float8e4m3fn>float8e4m3fn | 111 | - | 1
QuantizeLinear | 28 | f32,f32,float8e5m2>float8e5m2 | 111 | - | 1
QuantizeLinear | 28 | f32,f32,i16>i16 | 000 001 011 100 111 | - | 1
RMSNormalization | 23 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4
RNN | 14 22 | f32,f32,f32>f32,f32 | 000 | - | 4
RNN | 7 14 22 | f32,f32,f32,f32,-,f32>f32,f32 | 000000 011101 100000 111101 | - direction=bidirectional | 4
RNN | 7 14 22 | f32,f32,f32,f32>-,f32 | 0000 0111 1000 1111 | - direction=reverse | 3
RNN | 7 14 22 | f32,f32,f32>-,f32 | 000 011 100 111 | - direction=bidirectional direction=reverse | 3
Range | 11 27 | f32,f32,f32>f32 | 111 | - | 1
Range | 11 27 | i32,i32,i32>i32 | 111 | - | 1
Range | 11 | i64,i64,i64>i64 | 111 | - | 1
Reciprocal | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Reciprocal | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
ReduceL1 | 1 11 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceL1 | 1 11 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceL1 | 1 11 | i32>i32 | 1 | keepdims=0 | 3
ReduceL1 | 1 11 | i64>i64 | 1 | keepdims=0 | 3
ReduceL1 | 18 | f16,i64>f16 | 01 11 | - | 3 4 5
ReduceL1 | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceL1 | 18 | i32,i64>i32 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceL1 | 18 | i64,i64>i64 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceL2 | 1 11 13 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceL2 | 1 11 13 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceL2 | 1 11 13 | i32>i32 | 1 | keepdims=0 | 3
ReduceL2 | 1 11 13 | i64>i64 | 1 | keepdims=0 | 3
ReduceL2 | 18 | f16,i64>f16 | 01 11 | - | 3 4 5
ReduceL2 | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceL2 | 18 | i32,i64>i32 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceL2 | 18 | i64,i64>i64 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceLogSum | 1 11 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceLogSum | 1 11 | f32>f32 | 0 1 | - keepdims=0 | 2 3 4 5 6
ReduceLogSum | 1 11 | i32>i32 | 1 | keepdims=0 | 3
ReduceLogSum | 1 11 | i64>i64 | 1 | keepdims=0 | 3
ReduceLogSum | 28 | f32,i64>f32 | 01 11 | - keepdims=0 | 3
ReduceLogSumExp | 1 11 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceLogSumExp | 1 11 | f32>f32 | 0 1 | keepdims=0 | 3
ReduceLogSumExp | 1 11 | i32>i32 | 1 | keepdims=0 | 3
ReduceLogSumExp | 1 11 | i64>i64 | 1 | keepdims=0 | 3
ReduceMax | 1 11 12 13 18 | f16>f16 | 0 1 | - keepdims=0 | 2 3 4 5
ReduceMax | 1 11 12 13 18 | f32>f32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | i32>i32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | i64>i64 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMax | 13 | i8>i8 | 0 1 | - | 2
ReduceMax | 13 | u8>u8 | 0 1 | - | 2 3 4 5
ReduceMax | 18 20 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMax | 18 20 | i32,i64>i32 | 01 11 | - | 2
ReduceMax | 18 20 | i64,i64>i64 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMax | 18 | f16,i64>f16 | 01 11 | - | 2
ReduceMax | 18 | i8,i64>i8 | 01 11 | - | 2
ReduceMax | 18 | u8,i64>u8 | 01 11 | - | 2
ReduceMax | 20 | bool,i64>bool | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMean | 1 11 13 | f16>f16 | 0 1 | - keepdims=0 | 2 3 4 5
ReduceMean | 1 11 13 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceMean | 1 11 13 | i32>i32 | 1 | - keepdims=0 | 3
ReduceMean | 1 11 13 | i64>i64 | 1 | - keepdims=0 | 3
ReduceMean | 18 | f16,i64>f16 | 01 11 | - | 3 4 5
ReduceMean | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMean | 18 | i32,i64>i32 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceMean | 18 | i64,i64>i64 | 01 11 | - noop_with_empty_axes=1 | 3
ReduceMin | 1 11 12 13 18 | f16>f16 | 0 1 | - keepdims=0 | 2 3 4 5
ReduceMin | 1 11 12 13 18 | f32>f32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5 6
ReduceMin | 1 11 12 13 18 | i32>i32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMin | 1 11 12 13 18 | i64>i64 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMin | 13 | i8>i8 | 0 1 | - keepdims=0 | 2 3 4 5
ReduceMin | 13 | u8>u8 | 0 1 | - keepdims=0 | 2 3 4 5
ReduceMin | 18 20 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMin | 18 20 | i32,i64>i32 | 01 11 | - | 2
ReduceMin | 18 20 | i64,i64>i64 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMin | 18 | f16,i64>f16 | 01 11 | - | 2
ReduceMin | 18 | i8,i64>i8 | 01 11 | - | 2
ReduceMin | 18 | u8,i64>u8 | 01 11 | - | 2
ReduceMin | 20 | bool,i64>bool | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceProd | 1 11 13 18 | f16>f16 | 0 1 | - keepdims=0 | 3 4 5
ReduceProd | 1 11 13 18 | f32>f32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6
ReduceProd | 1 11 13 18 | i32>i32 | 0 1 | keepdims=0 noop_with_empty_axes=1 | 3
ReduceProd | 1 11 13 18 | i64>i64 | 0 1 | keepdims=0 noop_with_empty_axes=1 | 3
ReduceProd | 18 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 | 2 3 4 5
ReduceSum | 1 11 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceSum | 1 11 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceSum | 1 11 | i32>i32 | 0 1 | keepdims=0 | 3
ReduceSum | 1 11 | i64>i64 | 0 1 | keepdims=0 | 3
ReduceSum | 13 | f16,i64>f16 | 01 11 | - | 3 4
ReduceSum | 13 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSum | 13 | i32,i64>i32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSum | 13 | i64,i64>i64 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 1 11 13 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceSumSquare | 1 11 13 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceSumSquare | 1 11 13 | i32>i32 | 1 | keepdims=0 | 3
ReduceSumSquare | 1 11 13 | i64>i64 | 1 | keepdims=0 | 3
ReduceSumSquare | 18 | f16,i64>f16 | 01 11 | - | 3 4 5
ReduceSumSquare | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 18 | i32,i64>i32 | 01 11 | - noop_with_empty_axes=1 | 1 2 3
ReduceSumSquare | 18 | i64,i64>i64 | 01 11 | - noop_with_empty_axes=1 | 1 2 3
Relu | 14 | i32>i32 | 0 1 | - | 1 2 3 4 5 6
Relu | 14 | i8>i8 | 0 1 | - | 1 2 3 4 5 6
Relu | 6 13 14 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
Relu | 6 13 14 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Reshape | 5 13 14 19 21 23 24 25 | f32,i64>f32 | 01 11 | - allowzero=1 | 2 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | i32,i64>i32 | 01 11 | - allowzero=1 | 2 3 4
Reshape | 5 13 14 19 21 23 24 25 | i64,i64>i64 | 01 11 | - allowzero=1 | 1 2 3 4
Reshape | 5 13 | bool,i64>bool | 01 11 | - | 4
Reshape | 5 13 | f16,i64>f16 | 01 11 | - | 4
Reshape | 5 13 | i8,i64>i8 | 01 11 | - | 4
Reshape | 5 13 | u8,i64>u8 | 01 11 | - | 4
Resize | 10 | f32,f32>f32 | 01 | mode=linear | 4
Resize | 11 13 18 19 | f32,f32,f32>f32 | 011 111 | coordinate_transformation_mode=asymmetric,nearest_mode=floor | 4
Resize | 13 18 19 | f32,-,-,i64>f32 | 0001 1001 | - coordinate_transformation_mode=align_corners,mode=cubic coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel,mode=cubic coordinate_transformation_mode=pytorch_half_pixel,mode=linear mode=cubic mode=cubic,nearest_mode=ceil mode=cubic,nearest_mode=floor mode=cubic,nearest_mode=round_prefer_ceil mode=linear nearest_mode=ceil | 4
Resize | 13 18 19 | f32,-,f32>f32 | 001 101 | - coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,nearest_mode=floor mode=cubic mode=linear | 4
ReverseSequence | 28 | bf16,i64>bf16 | 11 | batch_axis=0,time_axis=1 | 2
ReverseSequence | 28 | f32,i64>f32 | 11 | - batch_axis=0,time_axis=1 | 2
RoiAlign | 10 16 22 | f32,f32,i64>f32 | 111 | - coordinate_transformation_mode=output_half_pixel | 4
RoiAlign | 10 16 | f16,f16,i64>f16 | 111 | - coordinate_transformation_mode=output_half_pixel | 4
RotaryEmbedding | 23 | f16,f16,f16,i64>f16 | 0000 0111 1000 | - | 4
RotaryEmbedding | 23 | f32,f32,f32,i64>f32 | 0000 0111 1000 1111 | - interleaved=1 interleaved=1,rotary_embedding_dim=4 rotary_embedding_dim=4 | 3 4
RotaryEmbedding | 23 | f32,f32,f32>f32 | 000 011 100 111 | - interleaved=1 rotary_embedding_dim=4 | 4
Round | 11 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Round | 11 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
STFT | 17 | f16,i64,-,i64>f16 | 0101 1101 | - | 4
STFT | 17 | f32,i32,-,i32>f32 | 0101 1101 | - onesided=0 | 4
STFT | 17 | f32,i64,-,i64>f32 | 0101 1101 | - onesided=0 | 4
STFT | 17 | f32,i64,f32>f32 | 010 011 111 | - | 4
Scatter | 9 | f32,i32,f32>f32 | 000 011 100 111 | - | 1 2 3 4
Scatter | 9 | f32,i64,f32>f32 | 000 011 100 111 | - | 1 2 3 4
Scatter | 9 | i64,i64,i64>i64 | 000 011 100 111 | - | 1 2 3 4
ScatterElements | 11 13 16 18 | f32,i32,f32>f32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 18 | f32,i64,f32>f32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 18 | i64,i64,i64>i64 | 000 011 100 111 | - | 2 3
ScatterElements | 11 13 16 | bool,i32,bool>bool | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | bool,i64,bool>bool | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | f16,i64,f16>f16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i32,i32,i32>i32 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i32,i64,i32>i32 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i64,i32,i64>i64 | 000 011 100 111 | - | 2
ScatterElements | 11 13 | f16,i32,f16>f16 | 000 011 100 111 | - | 2
ScatterND | 11 13 16 18 | f32,i64,f32>f32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 2 3
ScatterND | 11 13 16 18 | i32,i64,i32>i32 | 000 011 100 111 | - | 3
ScatterND | 11 13 16 18 | i64,i64,i64>i64 | 000 011 100 111 | - | 3
ScatterND | 11 13 16 | bool,i64,bool>bool | 000 011 100 111 | - | 3
ScatterND | 11 13 16 | f16,i64,f16>f16 | 000 011 100 111 | - | 3
ScatterND | 11 13 16 | i8,i64,i8>i8 | 000 011 100 111 | - | 3
ScatterND | 11 13 16 | u8,i64,u8>u8 | 000 011 100 111 | - | 3
Selu | 6 22 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
Selu | 6 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Shape | 1 13 15 19 21 23 24 25 | bool>i64 | 0 1 | - | 2 3 4
Shape | 1 13 15 19 21 23 24 25 | f32>i64 | 0 1 | - end=-1 end=-1,start=1 end=1 end=10 end=10,start=-1 end=10,start=-10 end=10,start=1 end=10,start=2 end=2 end=2,start=1 start=-1 start=-10 start=1 start=2 | 1 2 3 4 5 6
Shape | 1 13 15 19 21 23 24 25 | i32>i64 | 0 1 | - end=-1 end=1 end=10 end=2 start=-1 start=-10 start=1 start=2 | 2 3 4 5
Shape | 1 13 15 19 21 23 24 25 | i64>i64 | 0 1 | - end=-1 end=1 end=10 end=2 start=-1 start=-10 start=1 start=2 | 2 3 4 5
Shape | 1 13 15 19 21 23 24 | f16>i64 | 0 1 | - | 2 3
Shape | 1 13 15 19 21 23 24 | f64>i64 | 0 1 | - | 2 3
Shape | 1 13 15 19 21 23 24 | i8>i64 | 0 1 | - | 2 3
Shape | 1 13 15 19 21 23 24 | u8>i64 | 0 1 | - | 2 3
Shrink | 9 | f16>f16 | 0 1 | - | 0 1 2 3
Shrink | 9 | f32>f32 | 0 1 | - | 0 1 2 3
Shrink | 9 | i32>i32 | 0 | - | 0 1 2 3
Shrink | 9 | i64>i64 | 0 | - | 0 1 2 3
Shrink | 9 | i8>i8 | 1 | - | 1
Shrink | 9 | u8>u8 | 1 | - | 1
Sigmoid | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sigmoid | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Sign | 9 13 | f16>f16 | 0 1 | - | 0 1 2 3
Sign | 9 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Sign | 9 13 | i32>i32 | 0 1 | - | 0 1 2 3 4 5
Sign | 9 13 | i64>i64 | 0 1 | - | 0 1 2 3 4 5
Sign | 9 13 | i8>i8 | 0 1 | - | 0 1 2 3
Sign | 9 13 | u8>u8 | 1 | - | 1
Sin | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sin | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Sinh | 9 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sinh | 9 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Size | 1 13 19 21 23 24 25 | bool>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | f16>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | f32>i64 | 0 1 | - | 0 1 2 3 4 5 6
Size | 1 13 19 21 23 24 25 | f64>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | i32>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | i64>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | i8>i64 | 0 1 | - | 2 3 4 5
Size | 1 13 19 21 23 24 25 | u8>i64 | 0 1 | - | 2 3 4 5
Slice | 1 | bool>bool | 0 1 | - | 1 2 3
Slice | 1 | f16>f16 | 0 1 | - | 3
Slice | 1 | f32>f32 | 0 1 | - | 1 2 3 4 5
Slice | 1 | i32>i32 | 0 1 | - | 1 2 3
Slice | 1 | i64>i64 | 0 1 | - | 1 2 3
Slice | 1 | i8>i8 | 0 1 | - | 3
Slice | 1 | u8>u8 | 0 1 | - | 3
Slice | 10 11 13 | f32,i32,i32,i32,i32>f32 | 01111 11111 | - | 3 4
Slice | 10 11 13 | f32,i64,i64,i64,i64>f32 | 01111 11111 | - | 1 2 3 4 5
Slice | 10 11 13 | f32,i64,i64,i64>f32 | 0111 1111 | - | 2 3 4 5
Slice | 10 11 13 | f32,i64,i64>f32 | 011 111 | - | 3 4 5
Softmax | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
Softmax | 11 13 | f16>f16 | 0 1 | - | 2 3 4 5
SoftmaxCrossEntropyLoss | 12 13 | f32,i64,f32>f32 | 000 010 011 100 111 | - ignore_index=-1 ignore_index=-1,reduction=none ignore_index=-1,reduction=sum ignore_index=-5 ignore_index=0 ignore_index=1 ignore_index=10 ignore_index=10,reduction=sum ignore_index=2 reduction=none | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 12 13 | f32,i64>f32 | 00 01 10 11 | - ignore_index=-1,reduction=none ignore_index=-5 ignore_index=-5,reduction=none ignore_index=-5,reduction=sum ignore_index=0,reduction=none ignore_index=1,reduction=none ignore_index=10,reduction=none ignore_index=2 ignore_index=2,reduction=none reduction=none reduction=sum | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 13 | f32,i64,f32>f32,f32 | 000 010 011 100 111 | - ignore_index=-1 ignore_index=0 ignore_index=1 ignore_index=10,reduction=sum ignore_index=2 reduction=none | 2 3 4 5 6 7
SoftmaxCrossEntropyLoss | 13 | f32,i64>f32,f32 | 00 01 10 11 | - ignore_index=-5,reduction=none ignore_index=2 reduction=none reduction=sum | 2 3 4 5 6 7
Softplus | 1 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Softplus | 1 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Softsign | 1 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Softsign | 1 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
SpaceToDepth | 1 13 28 | f32>f32 | 0 1 | - | 4
SpaceToDepth | 1 | f16>f16 | 0 1 | - | 4
SpaceToDepth | 1 | i8>i8 | 0 1 | - | 4
SpaceToDepth | 1 | u8>u8 | 0 1 | - | 4
Split | 13 18 | f32,i64>f32* | 01 11 | - | 1 2 3 4 5 6
Split | 13 | bool,i64>bool* | 01 11 | - | 3
Split | 13 | f16,i64>f16* | 01 11 | - | 3
Split | 13 | i32,i64>i32* | 01 11 | - | 3
Split | 13 | i64,i64>i64* | 01 11 | - | 3
Split | 13 | i8,i64>i8* | 01 11 | - | 3
Split | 13 | u8,i64>u8* | 01 11 | - | 3
Split | 2 11 13 18 | f32>f32* | 0 1 | - | 1 2 3 4 5
Split | 2 11 13 18 | i64>i64* | 0 1 | - | 1 2 3
Split | 2 11 13 | i32>i32* | 0 1 | - | 1 2 3
Split | 2 11 | bool>bool* | 0 1 | - | 1
Split | 2 11 | f16>f16* | 0 1 | - | 1
Split | 2 11 | i8>i8* | 0 1 | - | 1
Split | 2 11 | u8>u8* | 0 1 | - | 1
Sqrt | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sqrt | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Squeeze | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
Squeeze | 1 11 | bool>bool | 0 1 | - | 4
Squeeze | 1 11 | f16>f16 | 0 1 | - | 4
Squeeze | 1 11 | i32>i32 | 0 1 | - | 4
Squeeze | 1 11 | i64>i64 | 0 1 | - | 1 2 3 4
Squeeze | 1 11 | i8>i8 | 0 1 | - | 4
Squeeze | 1 11 | u8>u8 | 0 1 | - | 4
Squeeze | 13 21 23 24 25 | bool,i64>bool | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 25 | f16,i64>f16 | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 25 | f32,i64>f32 | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 25 | i32,i64>i32 | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 25 | i64,i64>i64 | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 | i8,i64>i8 | 01 11 | - | 4
Squeeze | 13 21 23 24 | u8,i64>u8 | 01 11 | - | 4
Sub | 14 | i16,i16>i16 | 11 | - | 3
Sub | 14 | i64,i64>i64 | 00 01 10 11 | - | 1 2
Sub | 14 | i8,i8>i8 | 11 | - | 3
Sub | 14 | u16,u16>u16 | 11 | - | 3
Sub | 14 | u32,u32>u32 | 00 01 10 11 | - | 2 3 4 5
Sub | 14 | u64,u64>u64 | 00 01 10 11 | - | 3
Sub | 14 | u8,u8>u8 | 11 | - | 3
Sub | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
Sum | 6 8 13 | f16*>f16 | 0 1 | - | 0 1 2 3
Sum | 6 8 13 | f32*>f32 | 0 1 | - | 0 1 2 3 4 5
Swish | 24 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Swish | 24 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Tan | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Tan | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Tanh | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Tanh | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
ThresholdedRelu | 10 22 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
ThresholdedRelu | 10 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Tile | 6 13 | bool,i64>bool | 01 11 | - | 4
Tile | 6 13 | f16,i64>f16 | 01 11 | - | 4
Tile | 6 13 | f32,i64>f32 | 01 11 | - | 2 3 4
Tile | 6 13 | i32,i64>i32 | 01 11 | - | 4
Tile | 6 13 | i64,i64>i64 | 01 11 | - | 2 3 4
Tile | 6 | i8,i64>i8 | 01 11 | - | 4
Tile | 6 | u8,i64>u8 | 01 11 | - | 4
TopK | 10 11 24 | f32,i64>f32,i64 | 01 11 | - largest=0 | 1 2 3 4
TopK | 11 24 | i64,i64>i64,i64 | 01 11 | - largest=0 | 1 2 3 4
TopK | 24 | u64,i64>u64,i64 | 01 11 | - | 2
Transpose | 1 13 21 23 24 25 | bool>bool | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | f16>f16 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Transpose | 1 13 21 23 24 25 | i32>i32 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | i64>i64 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 | i8>i8 | 0 1 | - | 3
Transpose | 1 13 21 23 24 | u8>u8 | 0 1 | - | 3
Trilu | 14 | bool>bool | 0 1 | - upper=0 | 2 3 4
Trilu | 14 | f16>f16 | 0 1 | upper=0 | 2
Trilu | 14 | f32>f32 | 0 1 | - upper=0 | 2 3 4
Trilu | 14 | i32>i32 | 0 1 | - upper=0 | 2 3 4
Trilu | 14 | i64,i64>i64 | 01 11 | - upper=0 | 2 3 4
Trilu | 14 | i64>i64 | 0 1 | - upper=0 | 2 3 4
Unsqueeze | 1 11 | bool>bool | 0 1 | - | 1 2 3 4 5 6 7
Unsqueeze | 1 11 | f16>f16 | 0 1 | - | 4
Unsqueeze | 1 11 | f32>f32 | 0 1 | - | 2 3 4 5 6 7
Unsqueeze | 1 11 | i32>i32 | 0 1 | - | 4
Unsqueeze | 1 11 | i64>i64 | 0 1 | - | 1 2 3 4 5 6
Unsqueeze | 1 11 | i8>i8 | 0 1 | - | 4
Unsqueeze | 1 11 | u8>u8 | 0 1 | - | 4
Unsqueeze | 13 21 23 24 25 | bool,i64>bool | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | f16,i64>f16 | 01 11 | - | 3 4 5 6
Unsqueeze | 13 21 23 24 25 | f32,i64>f32 | 01 11 | - | 1 2 3 4 5 6 7
Unsqueeze | 13 21 23 24 25 | i32,i64>i32 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | i64,i64>i64 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 | i8,i64>i8 | 01 11 | - | 4
Unsqueeze | 13 21 23 24 | u8,i64>u8 | 01 11 | - | 4
Upsample | 7 | f16>f16 | 0 1 | - | 4
Upsample | 7 | f32>f32 | 0 1 | - | 4
Upsample | 7 | i32>i32 | 1 | - | 4
Upsample | 7 | i8>i8 | 1 | - | 4
Upsample | 7 | u8>u8 | 1 | - | 4
Upsample | 9 | f32,f32>f32 | 01 11 | - | 4
Upsample | 9 | i32,f32>i32 | 11 | - | 4
Where | 9 16 | bool,f32,f32>f32 | 000 011 100 111 | - | 1 2 3 4
Where | 9 16 | bool,i32,i32>i32 | 000 011 100 111 | - | 1 2 3 4
Where | 9 16 | bool,i64,i64>i64 | 000 011 100 111 | - | 1 2 3 4
Where | 9 | bool,f16,f16>f16 | 000 011 100 111 | - | 2
Where | 9 | bool,i8,i8>i8 | 000 011 100 111 | - | 2
Where | 9 | bool,u8,u8>u8 | 000 011 100 111 | - | 2
Xor | 7 | bool,bool>bool | 00 01 10 11 | - | 0 1 2 3 4 5 6
com.microsoft.Attention | 0 | f32,f32,f32>f32 | 000 011 100 111 | - | 3
com.microsoft.BiasGelu | 0 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
com.microsoft.FastGelu | 0 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
com.microsoft.FusedConv | 0 | f32,f32,f32>f32 | 000 011 100 111 | activation=Relu | 4
com.microsoft.FusedGemm | 0 | f32,f32,f32>f32 | 000 011 100 111 | activation=Relu | 2
com.microsoft.FusedMatMul | 0 | f32,f32>f32 | 00 01 10 11 | - | 2 3 4 5 6
com.microsoft.Gelu | 0 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
com.microsoft.QuickGelu | 0 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
com.microsoft.SkipLayerNormalization | 0 | f32,f32,f32,f32,f32>f32 | 00000 01111 10000 11111 | - | 2 3
"""
