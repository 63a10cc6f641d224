"""The layers that OPENVINO claims on devices of the kind CPU. Written by `make claims`; do not
edit. `table` explains the lines.
"""

from typing import Final

VERSION: Final = "2026.4.1"
"""The OpenVINO that computed them right, on: AMD EPYC."""

REFERENCE: Final = "onnx 1.23.2, ONNX Runtime 1.31.1"
"""What said what is right."""

ALLOWED: Final = """
Add | 14 | i16,i16>i16 | 00 01 10 11 | - | 2 3 4 5
Add | 14 | i32,i32>i32@24 | 00 01 10 11 | - | 2
Add | 14 | i64,i64>i64@24 | 00 01 10 11 | - | 1 2 3 4 5
Add | 14 | i8,i8>i8 | 00 01 10 11 | - | 3
Add | 14 | u16,u16>u16 | 00 01 10 11 | - | 2 3 4 5
Add | 14 | u8,u8>u8 | 00 01 10 11 | - | 3
Add | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
Add | 7 13 14 | u32,u32>u32@24 | 00 01 10 11 | - | 2 3 4 5
Add | 7 13 14 | u64,u64>u64@24 | 00 01 10 11 | - | 2 3 4 5
And | 7 | bool,bool>bool | 00 01 10 11 | - | 0 1 2 3 4 5 6
AveragePool | 7 10 11 19 22 | f16>f16 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4
AveragePool | 7 10 11 19 22 | f32>f32 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_LOWER,count_include_pad=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1,count_include_pad=1 auto_pad=SAME_UPPER,count_include_pad=1 ceil_mode=1 ceil_mode=1,count_include_pad=1 count_include_pad=1 | 3 4 5
BatchNormalization | 14 | f16,f16,f16,f16,f16>f16,f16,f16 | 00000 01111 10000 11111 | training_mode=1 | 4
BatchNormalization | 14 | f16,f16,f16,f32,f32>f16,f32,f32 | 00000 01111 10000 11111 | training_mode=1 | 4
BatchNormalization | 14 | f32,f32,f32,f16,f16>f32,f16,f16 | 00000 01111 10000 11111 | training_mode=1 | 4
BatchNormalization | 14 | f32,f32,f32,f32,f32>f32,f32,f32 | 00000 | training_mode=1 | 4
BatchNormalization | 7 9 14 15 | f32,f32,f32,f32,f32>f32 | 00000 01111 10000 11111 | - | 3 4
BatchNormalization | 7 9 14 | f16,f16,f16,f16,f16>f16 | 00000 01111 10000 11111 | - | 3 4
Cast | 13 19 21 23 24 25 28 | bf16>f32 | 0 1 | - | 1 2 3 4
Cast | 13 25 28 | f16>f32 | 0 1 | - | 2 3
Cast | 13 25 28 | f32>f16 | 0 1 | - | 1 2 3 4
Cast | 13 25 | bool>bool | 0 1 | - | 1 2 3 4
Cast | 13 25 | bool>f32 | 0 1 | - | 2 3
Cast | 13 25 | bool>i32 | 0 1 | - | 2
Cast | 13 25 | f32>bool | 0 1 | - | 1 2 3 4
Cast | 13 25 | f32>f32 | 0 1 | - | 1 2 3 4
Cast | 13 25 | f32>i32 | 0 1 | - | 1 2 3 4
Cast | 13 25 | f32>i64 | 0 1 | - | 1 2 3 4
Cast | 13 25 | f32>u8 | 0 1 | - | 1 2 3 4
Cast | 13 25 | i32>f32@24 | 0 1 | - | 2 3
Cast | 13 25 | i64>bool@24 | 0 1 | - | 2 3
Cast | 13 25 | i64>f32 | 0 1 | - | 1 2 3 4
Cast | 13 25 | i64>i32 | 0 1 | - | 1 2 3 4
Cast | 13 25 | i8>f32 | 0 1 | - | 2
Cast | 13 | f32>f64 | 0 | - | 1
Cast | 13 | f32>i8 | 0 1 | - | 1 2 3 4
Cast | 13 | i64>i64@31 | 0 1 | - | 1 2 3 4
Cast | 21 23 24 25 28 | i4>f16 | 1 | - | 2
Cast | 21 23 25 28 | u4>f32 | 1 | - | 2
Cast | 25 28 | f16>float8e4m3fn | 0 1 | saturate=0 | 2
Cast | 25 28 | f16>float8e5m2 | 0 1 | saturate=0 | 2
Cast | 25 28 | f32>bf16 | 0 1 | - | 2
Cast | 25 28 | f32>float8e4m3fn | 0 1 | saturate=0 | 2
Cast | 25 28 | f32>float8e5m2 | 0 1 | saturate=0 | 2
Cast | 25 28 | f64>f16 | 0 1 | - | 2
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
Cast | 25 28 | u4>u8 | 1 | - | 2
Cast | 25 | bool>i64 | 0 1 | - | 2
Cast | 25 | i32>i64@24 | 0 1 | - | 2
Cast | 25 | u8>f32 | 0 1 | - | 2
Cast | 28 | float8e8m0>f16 | 0 1 | - | 2
Cast | 28 | float8e8m0>f32 | 0 1 | - | 2
Clip | 11 12 13 | f16,f16,f16>f16 | 000 011 100 111 | - | 0 1 2 3 4 5
Clip | 11 12 13 | f32,-,f32>f32 | 000 001 100 101 | - | 0 1 2 3 4 5 6
Clip | 11 12 13 | f32,f32,f32>f32 | 000 011 100 111 | - | 0 1 2 3 4 5 6
Clip | 11 12 13 | f32,f32>f32 | 00 01 10 11 | - | 0 1 2 3 4 5 6
Clip | 11 12 | f16,-,f16>f16 | 000 001 100 101 | - | 3
Clip | 11 | f16,f16>f16 | 00 01 10 11 | - | 3
Clip | 12 13 | i32,i32,i32>i32 | 011 111 | - | 0 1 2 3 4 5
Clip | 12 13 | i64,i64,i64>i64@31 | 011 111 | - | 0 1 2 3 4 5
Clip | 12 13 | i8,-,i8>i8 | 000 001 100 101 | - | 0 1 2 3 4 5
Clip | 12 13 | i8,i8,i8>i8 | 011 111 | - | 0 1 2 3 4 5
Clip | 12 13 | i8,i8>i8 | 00 01 10 11 | - | 0 1 2 3 4 5
Clip | 12 13 | i8>i8 | 0 1 | - | 0 1 2 3
Clip | 12 13 | u8,u8,u8>u8 | 011 111 | - | 0 1 2 3 4 5
Clip | 12 | i32,-,i32>i32@24 | 000 001 100 101 | - | 3
Clip | 12 | i32>i32@24 | 0 1 | - | 1
Clip | 12 | i64,-,i64>i64@24 | 000 001 100 101 | - | 3
Clip | 12 | i64>i64@24 | 0 1 | - | 1
Clip | 12 | u32,u32,u32>u32@24 | 011 111 | - | 3
Clip | 12 | u32>u32@24 | 0 1 | - | 1
Clip | 12 | u64,u64,u64>u64@24 | 011 111 | - | 3
Clip | 12 | u64>u64@24 | 0 1 | - | 1
Clip | 12 | u8>u8 | 0 1 | - | 1
Clip | 6 11 12 13 | f32>f32 | 0 1 | - max=0.0 max=1.0 max=1.0,min=-1.0 max=5.0 max=5.0,min=-5.0 min=-1.0 min=-5.0 min=0.0 min=2.0 | 0 1 2 3 4 5 6
Clip | 6 11 12 | f16>f16 | 0 1 | - max=0.0 max=1.0,min=-1.0 min=0.0 | 1 3
Concat | 4 11 13 | bool*>bool | 0 1 | - | 1 2 3
Concat | 4 11 13 | f16*>f16 | 0 1 | - | 1 2 3
Concat | 4 11 13 | f32*>f32 | 0 1 | - | 1 2 3 4 5
Concat | 4 11 13 | i32*>i32 | 0 1 | - | 1 2 3
Concat | 4 11 13 | i64*>i64@31 | 0 1 | - | 1 2 3
Concat | 4 11 13 | i8*>i8 | 0 1 | - | 1 2
Concat | 4 11 13 | u8*>u8 | 0 1 | - | 1 2 3
Concat | 4 11 | i16*>i16 | 0 1 | - | 1 2
Concat | 4 11 | u16*>u16 | 0 1 | - | 1 2
Concat | 4 11 | u32*>u32@24 | 0 1 | - | 1 2
Concat | 4 11 | u64*>u64@24 | 0 1 | - | 1 2
Conv | 1 11 22 | f16,f16>f16 | 00 01 10 11 | - | 4
Conv | 1 11 22 | f32,f32,f32>f32 | 000 011 100 111 | - auto_pad=SAME_UPPER auto_pad=VALID | 3 4 5
Conv | 1 11 22 | f32,f32>f32 | 00 01 10 11 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID | 3 4
Conv | 1 11 | f16,f16,f16>f16 | 000 011 100 111 | - | 4
ConvTranspose | 1 11 22 | f16,f16>f16 | 00 01 10 11 | - auto_pad=SAME_UPPER | 3 4 5
ConvTranspose | 1 11 22 | f32,f32,f32>f32 | 000 011 100 111 | - auto_pad=SAME_UPPER | 4
ConvTranspose | 1 11 22 | f32,f32>f32 | 00 01 10 11 | - auto_pad=SAME_UPPER | 3 4 5
ConvTranspose | 1 11 | f16,f16,f16>f16 | 000 011 100 111 | - | 4
Cos | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Cos | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
DequantizeLinear | 10 13 19 21 23 24 28 | u8,f32,u8>f32 | 000 001 011 100 111 | - block_size=2 | 0 1 2 3 4 5 6
DequantizeLinear | 10 13 19 21 24 | i32,f32,i32>f32@24 | 000 001 011 100 111 | - | 0 1 2 3 4 5 6
DequantizeLinear | 10 13 19 21 24 | i8,f32,i8>f32 | 000 001 011 100 111 | - | 0 1 2 3 4 5 6
DequantizeLinear | 19 21 23 24 28 | float8e4m3fn,f16>f16 | 00 01 10 11 | - | 1 2 3
DequantizeLinear | 19 21 23 24 28 | float8e4m3fn,f32,float8e4m3fn>f32 | 000 011 100 111 | - | 1
DequantizeLinear | 19 21 23 24 28 | float8e4m3fn,f32>f32 | 00 01 10 11 | - | 1 2 3
DequantizeLinear | 19 21 | i32,f16,i32>f16@24 | 000 001 011 100 111 | - | 2 3 4
DequantizeLinear | 19 28 | float8e5m2,f32>f32 | 00 10 11 | - | 1
DequantizeLinear | 19 | u8,f16,u8>f16 | 000 001 011 100 111 | - | 2 3 4
DequantizeLinear | 28 | i16,f32,i16>f32 | 000 | - | 1
DequantizeLinear | 28 | u16,f32,u16>f32 | 000 | - | 1
Div | 14 | i16,i16>i16 | 00 01 10 11 | - | 2 3 4 5
Div | 14 | i64,i64>i64@31 | 00 01 10 | - | 1 2 3 4 5
Div | 14 | i8,i8>i8 | 00 | - | 3
Div | 14 | u16,u16>u16 | 00 01 10 11 | - | 2 3 4 5
Div | 14 | u8,u8>u8 | 00 | - | 3
Div | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
Div | 7 13 14 | i32,i32>i32 | 00 01 | - | 0 1 2 3
Div | 7 13 14 | u32,u32>u32@24 | 00 01 10 11 | - | 2 3 4 5
Div | 7 13 14 | u64,u64>u64@24 | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | i8,i8>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | u32,u32>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 11 13 19 | u64,u64>bool | 00 01 10 11 | - | 2 3 4 5
Equal | 13 19 | f32,f32>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 13 19 | i64,i64>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 13 19 | u8,u8>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 13 | bool,bool>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 13 | f16,f16>bool | 00 01 10 11 | - | 0 1 2 3 4
Equal | 7 11 13 19 | i32,i32>bool | 00 01 10 11 | - | 0 1 2 3 4 5
Erf | 9 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Erf | 9 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Exp | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Exp | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Expand | 8 13 | bool,i64>bool | 01 11 | - | 2 3 4
Expand | 8 13 | f16,i64>f16 | 01 11 | - | 2 3 4
Expand | 8 13 | f32,i64>f32 | 01 11 | - | 2 3 4 5 6
Expand | 8 13 | i32,i64>i32 | 01 11 | - | 2 3 4 5 6
Expand | 8 13 | i64,i64>i64@31 | 01 11 | - | 2 3 4
Expand | 8 13 | i8,i64>i8 | 01 11 | - | 2 3 4
Expand | 8 13 | u8,i64>u8 | 01 11 | - | 2 3 4
Expand | 8 | i16,i64>i16 | 01 11 | - | 3
Expand | 8 | u16,i64>u16 | 01 11 | - | 3
Expand | 8 | u32,i64>u32@24 | 01 11 | - | 3
Expand | 8 | u64,i64>u64@24 | 01 11 | - | 3
GRU | 14 22 | f32,f32,f32>f32,f32 | 000 | - direction=bidirectional direction=reverse | 4
GRU | 22 | f32,f32,f32>-,f32 | 000 | - | 3
GRU | 7 14 22 | f32,f32,f32,f32,-,f32>f32 | 000000 011101 100000 111101 | direction=bidirectional direction=bidirectional,linear_before_reset=1 | 4
GRU | 7 14 22 | f32,f32,f32,f32>-,f32 | 0000 0111 1000 1111 | - direction=reverse linear_before_reset=1 | 3
GRU | 7 22 | f32,f32,f32,f32,-,f32>f32,f32 | 000000 | direction=bidirectional direction=bidirectional,linear_before_reset=1 direction=reverse linear_before_reset=1 | 4
GRU | 7 22 | f32,f32,f32,f32,i32,f32>f32,f32 | 000000 000010 011111 100000 | linear_before_reset=1 | 4
GRU | 7 | f16,f16,f16,f16,-,f16>f16 | 000000 011101 100000 111101 | direction=bidirectional direction=bidirectional,linear_before_reset=1 | 4
GRU | 7 | f32,f32,f32>f32 | 000 | direction=bidirectional | 4
Gather | 1 11 13 | f32,i32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
Gather | 1 11 13 | f32,i64>f32 | 00 01 10 11 | - | 1 2 3 4 5 6 7
Gather | 1 11 13 | i64,i32>i64@24 | 00 01 10 11 | - | 4 5
Gather | 1 11 13 | i64,i64>i64@31 | 00 01 10 11 | - | 1 2 3 4 5 6
Gather | 1 11 | bool,i32>bool | 00 01 | - | 4
Gather | 1 11 | bool,i64>bool | 00 01 10 11 | - | 4
Gather | 1 11 | i32,i32>i32@24 | 00 01 10 11 | - | 4
Gather | 1 11 | i32,i64>i32@24 | 00 01 10 11 | - | 4
GatherElements | 11 13 | bool,i32>bool | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | bool,i64>bool | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | f32,i32>f32 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | f32,i64>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
GatherElements | 11 13 | i32,i32>i32 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | i32,i64>i32 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | i64,i32>i64@31 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 13 | i64,i64>i64@31 | 00 01 10 11 | - | 1 2 3 4
GatherElements | 11 | f16,i32>f16 | 00 01 10 11 | - | 2
GatherElements | 11 | f16,i64>f16 | 00 01 10 11 | - | 2
GatherElements | 11 | i16,i32>i16 | 00 01 10 11 | - | 2
GatherElements | 11 | i16,i64>i16 | 00 01 10 11 | - | 2
GatherElements | 11 | i8,i32>i8 | 00 01 10 11 | - | 2
GatherElements | 11 | i8,i64>i8 | 00 01 10 11 | - | 2
GatherElements | 11 | u16,i32>u16 | 00 01 10 11 | - | 2
GatherElements | 11 | u16,i64>u16 | 00 01 10 11 | - | 2
GatherElements | 11 | u32,i32>u32@24 | 00 01 10 11 | - | 2
GatherElements | 11 | u32,i64>u32@24 | 00 01 10 11 | - | 2
GatherElements | 11 | u64,i32>u64@24 | 00 01 10 11 | - | 2
GatherElements | 11 | u64,i64>u64@24 | 00 01 10 11 | - | 2
GatherElements | 11 | u8,i32>u8 | 00 01 10 11 | - | 2
GatherElements | 11 | u8,i64>u8 | 00 01 10 11 | - | 2
GatherND | 11 12 13 | bool,i64>bool | 00 01 10 11 | - | 2 3 4 5 6 7
GatherND | 11 12 13 | f16,i64>f16 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 13 | f32,i64>f32 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 13 | i32,i64>i32 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 13 | i64,i64>i64@31 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 13 | i8,i64>i8 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 13 | u8,i64>u8 | 00 01 10 11 | - | 2 3 5
GatherND | 11 12 | i16,i64>i16 | 00 01 10 11 | - | 2 3
GatherND | 11 12 | u16,i64>u16 | 00 01 10 11 | - | 2 3
GatherND | 11 12 | u32,i64>u32@24 | 00 01 10 11 | - | 2 3
GatherND | 11 12 | u64,i64>u64@24 | 00 01 10 11 | - | 2 3
Gemm | 11 13 | f32,f32>f32 | 00 01 10 11 | - | 2
Gemm | 11 | f16,f16>f16 | 00 01 10 11 | - | 2
Gemm | 7 9 11 13 | f32,f32,f32>f32 | 000 011 100 111 | - transA=1 transA=1,transB=1 transB=1 | 2
Gemm | 7 9 11 | f16,f16,f16>f16 | 000 011 100 111 | transA=1,transB=1 | 2
GlobalAveragePool | 1 22 | f16>f16 | 0 1 | - | 3 4 5
GlobalAveragePool | 1 22 | f32>f32 | 0 1 | - | 3 4 5
GlobalMaxPool | 1 22 | f16>f16 | 0 1 | - | 3 4 5
GlobalMaxPool | 1 22 | f32>f32 | 0 1 | - | 3 4 5
HardSigmoid | 6 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
HardSigmoid | 6 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
HardSwish | 14 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
HardSwish | 14 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | bool>bool | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | f64>f64 | 0 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i16>i16 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i32>i32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i64>i64@31 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | i8>i8 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | u16>u16 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | u32>u32 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | u64>u64 | 0 1 | - | 0 1 2 3 4 5 6
Identity | 1 13 14 16 19 21 23 24 25 | u8>u8 | 0 1 | - | 0 1 2 3 4 5 6
If | 1 11 | bool>f32* | 0 1 | - | 1
IsNaN | 20 | bf16>bool | 0 1 | - | 1 2 3 4 5 6
IsNaN | 9 13 20 | f16>bool | 0 1 | - | 0 1 2 3 4 5 6
IsNaN | 9 13 20 | f32>bool | 0 1 | - | 0 1 2 3 4 5 6
IsNaN | 9 13 20 | f64>bool | 0 1 | - | 0 1 2 3 4 5 6
LSTM | 14 22 | f32,f32,f32>f32,f32 | 000 | - | 4
LSTM | 14 | f16,f16,f16,f16,-,f16,f16>f16 | 0000000 0111011 1000000 1111011 | - direction=reverse | 4
LSTM | 14 | f32,f32,f32,f32,-,f32,f32>-,f32 | 0000000 | - | 3
LSTM | 14 | f32,f32,f32,f32,-,f32,f32>-,f32,f32 | 0000000 0111011 1000000 1111011 | - | 3
LSTM | 14 | f32,f32,f32,f32,-,f32,f32>f32 | 0000000 0111011 1000000 1111011 | - direction=bidirectional direction=reverse | 4
LSTM | 22 | f32,f32,f32,f32,i32,f32,f32>f32,f32,f32 | 0000000 0000100 0111111 1000000 1111111 | - direction=bidirectional | 4
LSTM | 22 | f32,f32,f32,f32>f32,f32,f32 | 0000 0111 1000 1111 | - direction=bidirectional | 4
LSTM | 7 14 22 | f32,f32,f32,f32>-,f32 | 0000 0111 1000 1111 | - direction=reverse input_forget=1 | 3
LSTM | 7 22 | f32,f32,f32,f32,-,f32,f32>f32,f32,f32 | 0000000 0111011 1000000 1111011 | - direction=bidirectional direction=reverse | 4
LSTM | 7 22 | f32,f32,f32>-,f32 | 000 011 100 111 | - direction=bidirectional | 3
LSTM | 7 22 | f32,f32,f32>-,f32,f32 | 000 011 100 111 | direction=bidirectional direction=reverse | 3
LayerNormalization | 17 | f16,f16,f16>f16,f32 | 000 | - | 2
LayerNormalization | 17 | f16,f16,f16>f16,f32,f32 | 000 011 100 111 | - | 1 2
LayerNormalization | 17 | f32,f32,f32>f32 | 000 011 100 111 | - | 2 3
LayerNormalization | 17 | f32,f32,f32>f32,f32 | 000 | - | 2
LayerNormalization | 17 | f32,f32,f32>f32,f32,f32 | 000 011 100 111 | - | 1 2 3 4
LeakyRelu | 6 16 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
LeakyRelu | 6 16 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Less | 13 | i64,i64>bool@31 | 00 01 10 11 | - | 2 3 4 5
Less | 7 9 13 | f32,f32>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | i16,i16>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | i8,i8>bool | 00 | - | 2 3 4 5
Less | 9 13 | u16,u16>bool | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | u32,u32>bool | 00 | - | 2 4 5
Less | 9 13 | u64,u64>bool@31 | 00 01 10 11 | - | 2 3 4 5
Less | 9 13 | u8,u8>bool | 00 | - | 2 3 4 5
Log | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Log | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
LogSoftmax | 1 11 13 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
LogSoftmax | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
MatMul | 1 9 13 | f16,f16>f16 | 00 01 10 11 | - | 1 2 3 4
MatMul | 1 9 13 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
MatMul | 9 13 | i32,i32>i32@24 | 00 01 10 11 | - | 1 2 3 4 5
MatMul | 9 13 | i64,i64>i64@24 | 00 01 10 11 | - | 1 2 3 4 5
MatMul | 9 13 | u32,u32>u32@24 | 00 01 10 11 | - | 1 2 3 4 5
MatMul | 9 13 | u64,u64>u64@24 | 00 01 10 11 | - | 1 2 3 4
Max | 12 13 | i32*>i32 | 0 1 | - | 0 1 2 3
Max | 12 13 | i64*>i64@31 | 0 1 | - | 0 1 2 3
Max | 12 13 | i8*>i8 | 0 1 | - | 0 1 2 3
Max | 12 13 | u64*>u64@31 | 0 1 | - | 0 1 2 3
Max | 12 13 | u8*>u8 | 0 1 | - | 0 1 2 3
Max | 12 | u32*>u32 | 1 | - | 0 2 3
Max | 13 | i16*>i16 | 0 | - | 1
Max | 13 | u16*>u16 | 0 | - | 1
Max | 6 8 12 13 | f16*>f16 | 0 1 | - | 0 1 2 3
Max | 6 8 12 13 | f32*>f32 | 0 1 | - | 0 1 2 3
Max | 8 12 | f64*>f64 | 0 | - | 0 2 3
MaxPool | 1 8 10 11 12 22 | f16>f16 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 storage_order=1 | 3 4
MaxPool | 1 8 10 11 12 | f32>f32 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_LOWER,ceil_mode=1 auto_pad=SAME_UPPER auto_pad=SAME_UPPER,ceil_mode=1 auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 ceil_mode=1,storage_order=1 storage_order=1 | 3 4 5
MaxPool | 12 22 | i8>i8 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 storage_order=1 | 3 4
MaxPool | 12 22 | u8>u8 | 0 1 | - auto_pad=SAME_LOWER auto_pad=SAME_UPPER auto_pad=VALID auto_pad=VALID,ceil_mode=1 auto_pad=VALID,storage_order=1 ceil_mode=1 storage_order=1 | 3 4
MaxPool | 8 10 11 12 22 | f32>f32,i64 | 0 | - storage_order=1 | 4
Mul | 14 | i16,i16>i16 | 00 01 10 11 | - | 2 3 4 5
Mul | 14 | i32,i32>i32@24 | 00 | - | 2
Mul | 14 | i64,i64>i64@24 | 00 01 10 11 | - | 1 2 3 4 5
Mul | 14 | i8,i8>i8 | 00 | - | 3
Mul | 14 | u16,u16>u16 | 00 01 10 11 | - | 2 3 4 5
Mul | 14 | u8,u8>u8 | 00 | - | 3
Mul | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 0 1 2 3 4 5
Mul | 7 13 14 | u32,u32>u32@24 | 00 01 10 11 | - | 2 3 4 5
Mul | 7 13 14 | u64,u64>u64@24 | 00 01 10 11 | - | 2 3 4 5
Neg | 13 | i8>i8 | 0 | - | 0 2 4 5 6
Neg | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Neg | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Neg | 6 13 | i16>i16 | 0 1 | - | 0 1 2 3 4 5 6
Neg | 6 13 | i32>i32 | 0 1 | - | 0 1 2 3 4 5 6
Neg | 6 13 | i64>i64@31 | 0 1 | - | 0 1 2 3 4 5 6
Not | 1 | bool>bool | 0 1 | - | 0 1 2 3 4 5 6
Pad | 11 13 18 19 21 23 24 25 | f32,i64,f32>f32 | 011 111 | - | 4
Pad | 11 13 18 19 21 23 24 25 | f32,i64>f32 | 01 11 | - mode=edge mode=reflect | 2 3 4
Pad | 11 13 18 19 21 23 24 25 | i32,i64,i32>i32@24 | 011 111 | - | 4
Pad | 11 13 18 19 21 23 24 25 | i32,i64>i32 | 01 11 | - mode=edge mode=reflect | 4
Pad | 11 13 18 19 21 23 24 25 | i64,i64,i64>i64@24 | 011 111 | - mode=edge mode=reflect | 4
Pad | 11 13 18 19 21 23 24 | f16,i64,f16>f16 | 011 111 | - | 4
Pad | 11 13 | i64,i64>i64@24 | 01 11 | mode=edge | 4
Pad | 11 13 | i8,i64,i8>i8 | 011 111 | - | 4
Pad | 11 13 | u8,i64,u8>u8 | 011 111 | - | 4
Pad | 11 | f16,i64>f16 | 01 11 | mode=edge | 4
Pad | 13 18 19 21 23 24 | bool,i64,bool>bool | 011 111 | - | 4
Pad | 18 19 21 23 24 25 | f32,i64,f32,i64>f32 | 0111 1111 | - | 4
Pad | 2 | f16>f16 | 0 1 | mode=edge mode=reflect | 4
Pad | 2 | f32>f32 | 0 1 | - mode=edge mode=reflect | 2 3 4
Pow | 12 13 15 | f32,f16>f32 | 00 01 10 11 | - | 2 3 4 5
Pow | 12 13 15 | f32,f64>f32 | 00 01 10 11 | - | 2 3 4 5
Pow | 12 13 15 | f32,i32>f32 | 00 01 10 11 | - | 0 1 2 3 4 5
Pow | 12 13 15 | f32,i64>f32 | 00 01 10 11 | - | 0 1 2 3 4 5
Pow | 12 13 15 | i32,f32>i32@24 | 00 | - | 0 1 2 3
Pow | 12 13 15 | i32,i32>i32 | 00 01 | - | 0 1 2 3
Pow | 12 13 15 | i64,f32>i64@24 | 00 01 10 11 | - | 0 1 2 3
Pow | 12 13 15 | i64,i64>i64@24 | 00 01 | - | 0 1 2 3
Pow | 15 | f32,u32>f32 | 00 | - | 1
Pow | 15 | f32,u64>f32 | 00 | - | 1
Pow | 7 12 13 15 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5 6
Pow | 7 | f16,f16>f16 | 00 01 10 11 | - | 3
QuantizeLinear | 10 13 19 21 23 24 28 | f32,f32,u8>u8 | 000 001 011 100 111 | - block_size=2,precision=1 block_size=2,saturate=0 precision=1 saturate=0 | 0 1 2 3 4 5 6
QuantizeLinear | 10 | f32,f32,i8>i8 | 000 001 011 100 111 | - | 0 1 2 3 4 5 6
QuantizeLinear | 19 21 23 24 28 | f32,f32,float8e4m3fn>float8e4m3fn | 011 111 | - | 1
QuantizeLinear | 28 | f32,f32,float8e5m2>float8e5m2 | 011 111 | - | 1
Range | 11 | f32,f32,f32>f32 | 111 | - | 1
Range | 11 | i32,i32,i32>i32@24 | 111 | - | 1
Range | 11 | i64,i64,i64>i64@24 | 111 | - | 1
Reciprocal | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Reciprocal | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | f16>f16 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | f32>f32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | i32>i32@24 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMax | 1 11 12 13 18 | i64>i64@24 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMax | 13 18 | i8>i8 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMax | 13 18 | u8>u8 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMax | 18 20 | f16,i64>f16 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMax | 18 20 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMax | 18 20 | i32,i64>i32@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMax | 18 20 | i64,i64>i64@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMax | 18 | i8,i64>i8 | 01 11 | - | 2
ReduceMax | 18 | u8,i64>u8 | 01 11 | - | 2
ReduceMax | 20 | bool,i64>bool | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMean | 1 11 13 | f16>f16 | 0 1 | - keepdims=0 | 0 1 2 3 4 5 6
ReduceMean | 1 11 13 | f32>f32 | 0 1 | - keepdims=0 | 0 1 2 3 4 5 6
ReduceMean | 1 11 13 | i32>i32@24 | 0 1 | - keepdims=0 | 0 1 2 3 4 5 6
ReduceMean | 1 11 13 | i64>i64@24 | 0 1 | - keepdims=0 | 0 1 2 3 4 5 6
ReduceMean | 18 | f16,i64>f16 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMean | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMean | 18 | f64,i64>f64 | 01 | noop_with_empty_axes=1 | 3
ReduceMean | 18 | i32,i64>i32@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMean | 18 | i64,i64>i64@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMin | 1 11 12 13 18 | f16>f16 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMin | 1 11 12 13 18 | f32>f32 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 0 1 2 3 4 5 6
ReduceMin | 1 11 12 13 18 | i32>i32@24 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMin | 1 11 12 13 18 | i64>i64@24 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5 6
ReduceMin | 13 18 | i8>i8 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMin | 13 18 | u8>u8 | 0 1 | - keepdims=0 noop_with_empty_axes=1 | 2 3 4 5
ReduceMin | 18 20 | f16,i64>f16 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMin | 18 20 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceMin | 18 20 | i32,i64>i32@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMin | 18 20 | i64,i64>i64@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceMin | 18 | i8,i64>i8 | 01 11 | - | 2
ReduceMin | 18 | u8,i64>u8 | 01 11 | - | 2
ReduceMin | 20 | bool,i64>bool | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4
ReduceSum | 1 11 | f16>f16 | 0 1 | keepdims=0 | 3
ReduceSum | 1 11 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceSum | 1 11 | i32>i32@24 | 0 1 | keepdims=0 | 3
ReduceSum | 1 11 | i64>i64@24 | 0 1 | keepdims=0 | 3
ReduceSum | 13 | f16,i64>f16 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSum | 13 | f32,i64>f32 | 01 11 | - keepdims=0 keepdims=0,noop_with_empty_axes=1 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSum | 13 | f64,i64>f64 | 01 | noop_with_empty_axes=1 | 3
ReduceSum | 13 | i32,i64>i32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSum | 13 | i64,i64>i64@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 1 11 13 | f16>f16 | 0 1 | - keepdims=0 | 3
ReduceSumSquare | 1 11 13 | f32>f32 | 0 1 | - keepdims=0 | 1 2 3 4 5 6
ReduceSumSquare | 1 11 13 | i32>i32@24 | 0 1 | - keepdims=0 | 3
ReduceSumSquare | 1 11 13 | i64>i64@24 | 0 1 | - keepdims=0 | 3
ReduceSumSquare | 18 | f16,i64>f16 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 18 | f32,i64>f32 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 18 | i32,i64>i32@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
ReduceSumSquare | 18 | i64,i64>i64@24 | 01 11 | - keepdims=0 noop_with_empty_axes=1 | 1 2 3 4 5
Relu | 14 | i32>i32@24 | 0 1 | - | 0 1 2 3 4 5 6
Relu | 14 | i8>i8 | 0 1 | - | 0 1 2 3 4 5 6
Relu | 6 13 14 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Relu | 6 13 14 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Reshape | 14 19 21 23 24 25 | f64,i64>f64 | 01 | allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | bool,i64>bool | 01 11 | - allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | f16,i64>f16 | 01 11 | - allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | f32,i64>f32 | 01 11 | - allowzero=1 | 2 3 4 5 6
Reshape | 5 13 14 19 21 23 24 25 | i16,i64>i16 | 01 11 | - allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | i32,i64>i32 | 01 11 | - allowzero=1 | 2 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | i64,i64>i64@31 | 01 11 | - allowzero=1 | 1 2 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | i8,i64>i8 | 01 11 | - allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 25 | u16,i64>u16 | 01 11 | - allowzero=1 | 3 4
Reshape | 5 13 14 19 21 23 24 25 | u8,i64>u8 | 01 11 | - allowzero=1 | 3 4 5
Reshape | 5 13 14 19 21 23 24 | u32,i64>u32@24 | 01 11 | - allowzero=1 | 3 4
Reshape | 5 13 14 19 21 23 24 | u64,i64>u64@24 | 01 11 | - allowzero=1 | 3 4
Resize | 10 | f16,f32>f16 | 01 11 | mode=linear | 4
Resize | 10 | f32,f32>f32 | 01 11 | - mode=linear | 4
Resize | 10 | i8,f32>i8 | 11 | mode=linear | 4
Resize | 10 | u8,f32>u8 | 11 | mode=linear | 4
Resize | 11 13 18 19 | f32,f32,f32>f32 | 011 111 | coordinate_transformation_mode=asymmetric,nearest_mode=floor | 4
Resize | 11 13 | f32,f16,f32>f32 | 011 111 | coordinate_transformation_mode=asymmetric,nearest_mode=floor | 4
Resize | 11 13 | f32,f64,f32>f32 | 011 111 | coordinate_transformation_mode=asymmetric,nearest_mode=floor | 4
Resize | 13 18 19 | f32,-,-,i64>f32 | 0001 1001 | - coordinate_transformation_mode=align_corners,mode=linear coordinate_transformation_mode=align_corners,nearest_mode=floor coordinate_transformation_mode=asymmetric,mode=linear coordinate_transformation_mode=asymmetric,nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel coordinate_transformation_mode=pytorch_half_pixel,mode=cubic coordinate_transformation_mode=pytorch_half_pixel,mode=linear coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=ceil coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=floor coordinate_transformation_mode=pytorch_half_pixel,mode=linear,nearest_mode=round_prefer_ceil mode=cubic mode=linear nearest_mode=ceil | 4
Resize | 13 18 19 | f32,-,f32>f32 | 001 101 | - coordinate_transformation_mode=asymmetric,mode=cubic coordinate_transformation_mode=asymmetric,nearest_mode=floor mode=cubic mode=linear | 4
Resize | 13 | f32,f32,-,i64>f32 | 0001 | coordinate_transformation_mode=align_corners,mode=linear coordinate_transformation_mode=asymmetric,mode=linear coordinate_transformation_mode=pytorch_half_pixel,mode=linear mode=linear | 4
ScatterElements | 11 13 16 18 | f32,i32,f32>f32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 18 | f32,i64,f32>f32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4 5 6
ScatterElements | 11 13 16 18 | i32,i32,i32>i32 | 000 011 100 111 | - | 1 2 3 4
ScatterElements | 11 13 16 18 | i32,i64,i32>i32 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 18 | i64,i32,i64>i64@31 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 18 | i64,i64,i64>i64@31 | 000 011 100 111 | - reduction=add reduction=max reduction=min reduction=mul | 1 2 3 4
ScatterElements | 11 13 16 | bool,i32,bool>bool | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | bool,i64,bool>bool | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | f16,i32,f16>f16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | f16,i64,f16>f16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i16,i32,i16>i16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i16,i64,i16>i16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i8,i32,i8>i8 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | i8,i64,i8>i8 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u16,i32,u16>u16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u16,i64,u16>u16 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u32,i32,u32>u32@24 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u32,i64,u32>u32@24 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u64,i32,u64>u64@24 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u64,i64,u64>u64@24 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u8,i32,u8>u8 | 000 011 100 111 | - | 2
ScatterElements | 11 13 16 | u8,i64,u8>u8 | 000 011 100 111 | - | 2
Sigmoid | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sigmoid | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Sin | 7 22 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sin | 7 22 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Slice | 1 | bool>bool | 0 1 | - | 1 2 3
Slice | 1 | f16>f16 | 0 1 | - | 1 2 3
Slice | 1 | f32>f32 | 0 1 | - | 1 3 4 5
Slice | 1 | i32>i32 | 0 1 | - | 1 2 3
Slice | 1 | i64>i64@31 | 0 1 | - | 1 2 3
Slice | 1 | i8>i8 | 0 1 | - | 1 2 3
Slice | 1 | u8>u8 | 0 1 | - | 1 2 3
Slice | 10 11 13 | f32,i32,i32,i32,i32>f32 | 01111 11111 | - | 2 3 4 5
Slice | 10 11 13 | f32,i64,i64,i64,i64>f32 | 01111 11111 | - | 1 2 3 4 5
Slice | 10 11 13 | f32,i64,i64,i64>f32 | 0111 1111 | - | 2 3 4 5
Slice | 10 11 13 | f32,i64,i64>f32 | 011 111 | - | 3 4 5
Slice | 10 11 13 | i64,i64,i64,i64,i64>i64@31 | 01111 11111 | - | 2 3 4 5
Slice | 10 11 | bool,i32,i32,i32,i32>bool | 01111 11111 | - | 3
Slice | 10 11 | bool,i64,i64,i64,i64>bool | 01111 11111 | - | 3
Slice | 10 11 | f16,i32,i32,i32,i32>f16 | 01111 11111 | - | 3
Slice | 10 11 | f16,i64,i64,i64,i64>f16 | 01111 11111 | - | 3
Slice | 10 11 | i32,i32,i32,i32,i32>i32@24 | 01111 11111 | - | 3
Slice | 10 11 | i32,i64,i64,i64,i64>i32@24 | 01111 11111 | - | 3
Slice | 10 11 | i64,i32,i32,i32,i32>i64@24 | 01111 11111 | - | 3
Slice | 10 11 | u8,i32,i32,i32,i32>u8 | 01111 | - | 3
Slice | 10 11 | u8,i64,i64,i64,i64>u8 | 01111 11111 | - | 3
Softmax | 1 11 13 | f16>f16 | 0 1 | - | 1 2 3 4 5 6
Softmax | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
Split | 13 18 | f32,i64>f32* | 01 11 | - | 1 2 3 4
Split | 13 | bool,i64>bool* | 01 11 | - | 1 2
Split | 13 | f16,i64>f16* | 01 11 | - | 1 2
Split | 13 | i32,i64>i32*@24 | 01 11 | - | 1 2
Split | 13 | i64,i64>i64*@24 | 01 11 | - | 1 2
Split | 13 | i8,i64>i8* | 01 11 | - | 1
Split | 13 | u8,i64>u8* | 01 11 | - | 1 2
Split | 2 11 13 18 | bool>bool* | 0 1 | - | 1 2 3
Split | 2 11 13 18 | f16>f16* | 0 1 | - | 1 2 3
Split | 2 11 13 18 | i32>i32* | 0 1 | - | 1 2 3
Split | 2 11 13 18 | i64>i64*@31 | 0 1 | - | 1 2 3
Split | 2 11 13 | f32>f32* | 0 1 | - | 1 2 3 4 5 6
Split | 2 11 13 | u8>u8* | 0 1 | - | 1 2
Split | 2 11 | i8>i8* | 0 1 | - | 1 2
Sqrt | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Sqrt | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Squeeze | 1 11 13 | f32>f32 | 0 1 | - | 1 2 3 4 5 6
Squeeze | 1 11 | bool>bool | 0 1 | - | 1 4
Squeeze | 1 11 | f16>f16 | 0 1 | - | 1 4
Squeeze | 1 11 | i16>i16 | 0 1 | - | 1 4
Squeeze | 1 11 | i32>i32@24 | 0 1 | - | 1 4
Squeeze | 1 11 | i64>i64@24 | 0 1 | - | 1 4
Squeeze | 1 11 | i8>i8 | 0 1 | - | 1 4
Squeeze | 1 11 | u16>u16 | 0 1 | - | 1 4
Squeeze | 1 11 | u32>u32@24 | 0 1 | - | 1 4
Squeeze | 1 11 | u64>u64@24 | 0 1 | - | 1 4
Squeeze | 1 11 | u8>u8 | 0 1 | - | 1 4
Squeeze | 13 21 23 24 25 | bool,i64>bool | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | f16,i64>f16 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | f32,i64>f32 | 01 11 | - | 1 2 3 4 5 6
Squeeze | 13 21 23 24 25 | i16,i64>i16 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | i32,i64>i32 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | i64,i64>i64@31 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | i8,i64>i8 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | u16,i64>u16 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 25 | u8,i64>u8 | 01 11 | - | 1 4 5 6
Squeeze | 13 21 23 24 | u32,i64>u32@24 | 01 11 | - | 1 4
Squeeze | 13 21 23 24 | u64,i64>u64@24 | 01 11 | - | 4
Sub | 14 | i16,i16>i16 | 00 01 10 11 | - | 2 3 4 5
Sub | 14 | i64,i64>i64@24 | 00 01 10 11 | - | 1 2 3 4 5
Sub | 14 | i8,i8>i8 | 00 | - | 3
Sub | 14 | u16,u16>u16 | 00 01 10 11 | - | 2 3 4 5
Sub | 14 | u8,u8>u8 | 00 | - | 3
Sub | 7 13 14 | f32,f32>f32 | 00 01 10 11 | - | 1 2 3 4 5
Sub | 7 13 14 | u32,u32>u32@24 | 00 01 10 11 | - | 2 3 4 5
Sub | 7 13 14 | u64,u64>u64@24 | 00 01 10 11 | - | 2 3 4 5
Tanh | 6 13 | f16>f16 | 0 1 | - | 0 1 2 3 4 5 6
Tanh | 6 13 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Transpose | 1 13 21 23 24 25 | bool>bool | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | f16>f16 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6
Transpose | 1 13 21 23 24 25 | i16>i16 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | i32>i32 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | i64>i64@31 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | i8>i8 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | u16>u16 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | u32>u32@24 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 25 | u8>u8 | 0 1 | - | 2 3 4 5
Transpose | 1 13 21 23 24 | u64>u64@24 | 0 1 | - | 3
Unsqueeze | 1 11 | bool>bool | 0 1 | - | 0 1 2 3 4 5 6 7
Unsqueeze | 1 11 | f16>f16 | 0 1 | - | 4 5
Unsqueeze | 1 11 | f32>f32 | 0 1 | - | 0 1 2 3 4 5 6 7 8
Unsqueeze | 1 11 | i16>i16 | 0 1 | - | 4 5
Unsqueeze | 1 11 | i32>i32@24 | 0 1 | - | 4 5
Unsqueeze | 1 11 | i64>i64@31 | 0 1 | - | 0 1 2 3 4 5 6 7
Unsqueeze | 1 11 | i8>i8 | 0 1 | - | 4 5
Unsqueeze | 1 11 | u16>u16 | 0 1 | - | 4 5
Unsqueeze | 1 11 | u32>u32@24 | 0 1 | - | 4 5
Unsqueeze | 1 11 | u64>u64@24 | 0 1 | - | 4 5
Unsqueeze | 1 11 | u8>u8 | 0 1 | - | 4 5
Unsqueeze | 13 21 23 24 25 | bool,i64>bool | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | f16,i64>f16 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | f32,i64>f32 | 01 11 | - | 1 2 3 4 5 6 7
Unsqueeze | 13 21 23 24 25 | i16,i64>i16 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | i32,i64>i32 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | i64,i64>i64@31 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | i8,i64>i8 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | u16,i64>u16 | 01 11 | - | 2 3 4 5 6
Unsqueeze | 13 21 23 24 25 | u8,i64>u8 | 01 11 | - | 1 2 3 4 5 6
Unsqueeze | 13 21 23 24 | u32,i64>u32@24 | 01 11 | - | 4
Unsqueeze | 13 21 23 24 | u64,i64>u64@24 | 01 11 | - | 4
Where | 9 16 | bool,f16,f16>f16 | 000 011 100 111 | - | 1 2 3 4
Where | 9 16 | bool,f32,f32>f32 | 000 011 100 111 | - | 0 1 2 3 4 5 6
Where | 9 16 | bool,i32,i32>i32 | 000 001 010 011 100 111 | - | 1 2 3 4
Where | 9 16 | bool,i64,i64>i64@31 | 000 001 010 011 100 111 | - | 0 1 2 3 4 5 6
Where | 9 16 | bool,i8,i8>i8 | 000 001 010 011 100 111 | - | 1 2 3 4
Where | 9 16 | bool,u8,u8>u8 | 000 001 010 011 100 111 | - | 1 2 3 4
Where | 9 | bool,u32,u32>u32@24 | 000 001 010 011 100 111 | - | 2
"""
