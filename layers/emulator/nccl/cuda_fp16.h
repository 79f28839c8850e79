// cuda_fp16.h   nccl.h includes it, but uses nothing from it
#pragma once
