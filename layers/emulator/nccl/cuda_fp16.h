// cuda_fp16.h   nccl.h includes it, and takes nothing from it
#pragma once
