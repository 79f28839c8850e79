# make              finds what this machine has and builds ./train_gpt ./test_gpt ./tokenize ./tasks ./convert
# make help         the targets and the settings

DEVICE    ?= auto
PRECISION ?= auto
ARCH      := native
SANITIZE  ?=
CXX       ?= g++
MULTIARCH := $(shell $(CXX) -print-multiarch 2>/dev/null)

# ---- what is here ------------------------------------------------------------------------------------------
NVCC     ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
GPU      := $(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
MPICXX   := $(firstword $(shell command -v mpicxx 2>/dev/null) $(wildcard /usr/lib64/openmpi/bin/mpicxx))
CUDA_DIR := $(patsubst %/bin/nvcc,%,$(NVCC))
# where a module has it, else beside CUDA or the system's
NCCL     := $(firstword $(wildcard $(addsuffix /nccl.h,$(addsuffix /include,$(NCCL_HOME) $(NCCL_ROOT)) \
	$(subst :, ,$(CPATH)) $(CUDA_DIR)/include /usr/include)))

# prefers a BLAS that uses OpenMP's threads: one with its own thread pool competes with ours for the cores
blas_links = $(shell echo 'extern "C" void cblas_sgemm(); int main() { cblas_sgemm(); }' | \
	$(CXX) -x c++ - -o /dev/null $(1) 2>/dev/null && echo '$(1)')
OPENMP_BLAS := $(firstword $(wildcard /usr/lib/$(MULTIARCH)/openblas-openmp /usr/lib64/openblas-openmp))
first_blas  = $(or $(call blas_links,-lopenblaso),$(call blas_links,-lopenblas),$(call blas_links,-lblis),\
	$(call blas_links,-lcblas))
BLAS ?= $(strip $(if $(OPENMP_BLAS),-L$(OPENMP_BLAS) -Wl$(comma)-rpath$(comma)$(OPENMP_BLAS) -lopenblas,\
	$(first_blas)))
comma := ,

ifeq ($(DEVICE),auto)
  override DEVICE := $(if $(and $(NVCC),$(GPU)),cuda,cpu)
endif
ifeq ($(PRECISION),auto)
  override PRECISION := $(if $(filter cuda,$(DEVICE)),bf16,fp32)
endif
ifeq ($(filter $(DEVICE),cuda cpu emulated),)
  $(error DEVICE=$(DEVICE): choose cuda, cpu, emulated or auto)
endif
ifeq ($(filter $(PRECISION),bf16 fp32 fp64),)
  $(error PRECISION=$(PRECISION): choose bf16, fp32, fp64 or auto)
endif

ifeq ($(PRECISION),fp64)
  ifneq ($(DEVICE),cpu)
    $(error PRECISION=fp64 with DEVICE=$(DEVICE): the kernels take bf16 and fp32: choose DEVICE=cpu)
  endif
endif

# ---- how each variant is compiled --------------------------------------------------------------------------
# the emulated device has its own race detector: the compiler only instruments the accesses
WATCHED  := $(and $(filter emulated,$(DEVICE)),$(filter thread,$(SANITIZE)))
SANITIZED := $(and $(SANITIZE),$(if $(WATCHED),,yes))
# programs that run on the host for every DEVICE and PRECISION (the tools, the corpus) are compiled only once
TOOLS    := build/host$(if $(SANITIZED),-sanitized)
OBJECTS  := build/$(DEVICE)-$(PRECISION)$(if $(SANITIZE),-$(if $(WATCHED),watched,sanitized))
BUILD    := $(OBJECTS)$(if $(findstring command,$(origin COMM)),-$(COMM))
MAKEFLAGS += --no-builtin-rules  # or a program in another build folder would be linked without its libraries
PROGRAMS := train_gpt test_gpt tokenize tasks convert
# builds made for checking, not for speed: -O2 would cost as much compile time as it saves run time
FAST     := $(if $(SANITIZED),-Og,-O2)
LEVEL    := $(if $(filter emulated fp64,$(DEVICE) $(PRECISION)),$(FAST:-O2=-O1),$(FAST))
CXXFLAGS ?= $(LEVEL) $(if $(filter native,$(ARCH)),-march=native,\
	$(if $(ARCH),-march=$(ARCH)))
# UBSan checks that are left out: a null pointer crashes anyway (the check is a quarter of the build's time),
# AddressSanitizer knows the sizes of objects, and only one class has virtual functions
FEWER    := $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize=null$(comma)vptr$(comma)object-size)
# AddressSanitizer checks an access by a call, not by inline code: half the build's time
CALLS    := asan-instrumentation-with-call-threshold=0
CALLED   := $(if $(findstring clang,$(CXX)),-Wno-unused-command-line-argument -mllvm -,--param )$(CALLS)
CALLED   := $(if $(findstring address,$(SANITIZE)),$(CALLED))
CHECKED  := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all $(FEWER) $(CALLED) \
	-fno-omit-frame-pointer -g1)
# clang says where it does not vectorise, as if that were wrong; g++ does not know CUDA's #pragma unroll
QUIET    := $(if $(findstring clang,$(CXX)),-Wno-pass-failed)
QUIET    += $(if $(filter emulated,$(DEVICE)),-Wno-unknown-pragmas)
# -fno-math-errno: a loop with a square root is vectorised only if sqrt need not set errno
HOST      = -std=c++20 -fopenmp -fno-math-errno -Wall -Wextra $(QUIET) $(CXXFLAGS) \
	$(if $(WATCHED),-g1,$(CHECKED))
DEFINES  := $(if $(filter bf16,$(PRECISION)),-DPRECISION_BF16)
DEFINES  += $(if $(filter fp64,$(PRECISION)),-DPRECISION_FP64)
DEFINES  += $(if $(filter-out cpu,$(DEVICE)),-DDEVICE_$(if $(filter cuda,$(DEVICE)),CUDA,EMULATED))
# native: this machine's GPU, with the features specific to sm_90a and sm_100a, unlike nvcc's -arch=native
ifeq ($(GPU_CODE),native)
  SM := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
  SM := $(SM)$(if $(filter 90 100,$(SM)),a)
  override GPU_CODE := -gencode arch=compute_$(SM),code=sm_$(SM)
endif
GPU_CODE ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_89,code=compute_89 \
	-gencode arch=compute_90a,code=sm_90a

ifeq ($(DEVICE),cuda)
  ifeq ($(NVCC),)
    $(error DEVICE=cuda: nvcc was not found: install the CUDA Toolkit, set NVCC=PATH, or choose DEVICE=cpu)
  endif
  # CUDA's own headers, wherever this nvcc has them
  CUDA_HEADERS := $(shell $(NVCC) --dryrun -x cu -c /dev/null -o /dev/null 2>&1 | \
	sed -n 's/.* INCLUDES=//p' | tr -d '"')
  # nvcc compiles what has kernels, for whatever host: -O1 is the host's, the kernels are the same at -O3
  NVCC_CXX := $(NVCC) $(if $(filter-out default,$(origin CXX)),-ccbin $(lastword $(CXX)))
  KERNELS := $(NVCC_CXX) -std=c++20 -O1 -lineinfo --threads 2 $(GPU_CODE) -Xptxas -warn-spills \
	-Xcompiler -fopenmp,-Wall,-Wextra $(DEFINES) -x cu
  COMPILE := $(CXX) -std=c++20 -O1 -fopenmp -Wall -Wextra $(DEFINES) \
	$(patsubst -I%,-isystem %,$(filter-out -I/usr/include,$(CUDA_HEADERS))) -x c++
  LINK    := $(NVCC_CXX) -Xcompiler -fopenmp
  LIBS    := -lcublasLt -ldl -L/usr/local/nvidia/lib64 -Xlinker -rpath -Xlinker $(CUDA_DIR)/lib64
else
  COMPILE := $(CXX) $(HOST) $(DEFINES) $(if $(WATCHED),-DWATCHED -fsanitize=thread -Wno-tsan) -x c++
  KERNELS := $(COMPILE)
  LINK    := $(CXX) $(HOST)
  LIBS    :=
endif
# nvcc takes -rpath behind -Xlinker
NVCC_BLAS := $(subst -Wl$(comma)-rpath$(comma),-Xlinker -rpath -Xlinker ,$(BLAS))
BLAS_LIBS := $(if $(filter cuda,$(DEVICE)),$(NVCC_BLAS),$(BLAS))

# bf16 GEMMs on the host are selected at link time: oneDNN's if it is installed
onednn_links = $(shell echo 'int main() { dnnl_version(); }' | \
	$(CXX) -include oneapi/dnnl/dnnl.hpp -x c++ - -o /dev/null $(1) 2>/dev/null && echo '$(1)')
ifeq ($(DEVICE)-$(PRECISION),cpu-bf16)
  ifeq ($(origin ONEDNN),undefined)
    ONEDNN := $(call onednn_links,-ldnnl)
  endif
  ONEDNN_FOUND := | oneDNN $(or $(ONEDNN),none)$(empty) $(empty)
  BF16_OBJECT  := $(OBJECTS)/bf16_$(if $(ONEDNN),onednn,widened).o
  LIBS         += $(ONEDNN)
else ifeq ($(PRECISION),bf16)
  BF16_OBJECT  := $(OBJECTS)/bf16_widened.o
endif

# ---- the transport is chosen by linking --------------------------------------------------------------------
COMM ?= $(if $(MPICXX),$(if $(and $(filter cuda,$(DEVICE)),$(NCCL)),nccl,mpi),single)
ifeq ($(filter $(COMM),nccl mpi single),)
  $(error COMM=$(COMM): choose nccl, mpi or single)
endif
ifeq ($(COMM),nccl)
  ifeq ($(NCCL),)
    $(error COMM=nccl: nccl.h was not found: install NCCL, or choose COMM=mpi)
  endif
  ifeq ($(DEVICE),cuda)
    NCCL_LIB  := $(patsubst %/include/nccl.h,%/lib,$(filter-out /usr/include/%,$(NCCL)))
    NCCL_COMPILE := $(if $(NCCL_LIB),-isystem $(dir $(NCCL)))
    NCCL_LINK := $(if $(NCCL_LIB),-L$(NCCL_LIB) -Xlinker -rpath -Xlinker $(NCCL_LIB)) -L$(CUDA_DIR)/lib -lnccl
  else ifeq ($(DEVICE),emulated)
    NCCL_COMPILE := -Ilayers/emulator/nccl -idirafter $(dir $(NCCL))
    NCCL_OBJECT  := $(OBJECTS)/nccl.o
  else
    $(error COMM=nccl requires DEVICE=cuda, or emulated: choose COMM=mpi)
  endif
endif
ifneq ($(COMM),single)
  ifeq ($(MPICXX),)
    $(error COMM=$(COMM): mpicxx was not found: run scripts/install.sh, or choose COMM=single)
  endif
  # Open MPI's wrapper says what it passes on with --showme, MPICH's and Intel's with -show
  MPI_FLAGS   := $(or $(shell $(MPICXX) --showme 2>/dev/null),$(shell $(MPICXX) -show 2>/dev/null))
  MPI_COMPILE := -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(filter -I%,$(MPI_FLAGS))
  # found at run time too, on hosts where no module is loaded
  MPI_LINK    := $(filter -L% -l%,$(MPI_FLAGS)) \
	$(foreach d,$(patsubst -L%,%,$(filter -L%,$(MPI_FLAGS))),-Xlinker -rpath -Xlinker $(d))
endif
ifeq ($(DEVICE)-$(COMM)-$(origin COMM),cuda-mpi-file)
  $(warning NCCL was not found: several ranks would talk over MPI, through the host: set NCCL_HOME)
endif

.PHONY: all $(PROGRAMS) corpus corpus-found found nccl-folder onednn-flags help test check clean \
	bench bench-evaluate bench-parallel bench-corpus profile kernel-report check-kernels record-kernels
all: found $(PROGRAMS:%=$(BUILD)/%)
	@for p in $(PROGRAMS); do ln -f $(BUILD)/$$p $$p; done

$(PROGRAMS): %: $(BUILD)/%
	ln -f $< $@

found:
	@echo "found: nvcc $(or $(NVCC),none) | GPU $(or $(GPU),none) | MPI $(or $(MPICXX),none) |" \
	  "NCCL $(or $(NCCL),none) | CBLAS $(or $(lastword $(BLAS)),none)$(if $(OPENMP_BLAS), (OpenMP))" \
	  "$(ONEDNN_FOUND)-> DEVICE=$(DEVICE) PRECISION=$(PRECISION) COMM=$(COMM)"
ifeq ($(strip $(BLAS)),)
	@echo "no CBLAS was found: run scripts/install.sh, or set BLAS='-L... -l...'"; exit 1
endif

nccl-folder:
	@echo $(dir $(NCCL))
onednn-flags:
	@echo $(call onednn_links,-ldnnl)
help:
	@sed -n 's/^#: //p' Makefile
#: make                             for this machine: ./train_gpt ./test_gpt ./tokenize ./tasks ./convert
#: make train_gpt tokenize          only these
#: make DEVICE=cuda|cpu|emulated    the device (emulated: the CUDA kernels, executed by g++)
#: make PRECISION=bf16|fp32|fp64    of parameters and activations (default: bf16 on cuda, else fp32)
#: make SANITIZE=address,undefined  with the compiler's sanitizers (cpu and emulated)
#: make DEVICE=emulated SANITIZE=thread   with the emulated device's race detector
#: make COMM=nccl|mpi|single        the transport (default: what is found: nccl on cuda, else mpi; with
#:                                  DEVICE=emulated, nccl is a stand-in behind NCCL's own header)
#: make ARCH=x86-64-v3              for another processor than this one
#: make CXX=clang++-16              with another compiler (g++ 12 or clang++ 16, or later)
#: make MPICXX=mpicxx.mpich         with another MPI
#: make BLAS='-lmkl_rt'             another CBLAS
#: make PRECISION=bf16 ONEDNN=...   another oneDNN ('-I... -L... -ldnnl'), or none: for GEMMs in bf16 on a CPU
#: make GPU_CODE=native             for this GPU only (default: sm_80, sm_90a, PTX; sm_89: FP8 is faster)
#: make test                        all checks: bash scripts/test.sh
#: make check                       the architecture: who includes whom, headers alone, limits
#: make bench                       speed of a training step, compared with its GEMMs alone and PyTorch
#: make profile                     a step's time by operation (OPTIONS='--model 350M')
#: make bench-evaluate              evaluation versus training; shared versus separate contexts
#: make bench-parallel              two tensor-, pipeline- or data-parallel ranks versus one
#: make corpus                      ./corpus: Common Crawl and other texts -> tokens
#: make bench-corpus                each of its steps on one core, two ranks beside one, memory
#: make kernel-report               each kernel's machine code, and the estimated time of a step in it
#:                                  (needs nvcc and nvdisasm, no GPU)
#: make check-kernels               fails if a kernel's hot loop is worse than in scripts/kernel_counts.json
#: make record-kernels              rewrites that file
#: make clean                       remove what was built

DEPENDENCIES := $(wildcard $(OBJECTS)/*.d $(TOOLS)/*.d)
ifneq ($(MAKECMDGOALS),clean)
  -include $(DEPENDENCIES)
endif
# sources that were moved since the last build: what was made from them is made again
USED  := $(sort $(filter %.cpp %.cu,$(if $(DEPENDENCIES),$(shell cat $(DEPENDENCIES)))))
MOVED := $(filter-out $(wildcard $(USED)),$(USED))
$(MOVED): ;

# what was made with other settings is made again: the compiler and its flags, GPUs, MPI and BLAS
now_settings  := $(strip $(CXX) $(ARCH) $(SANITIZE) \
	$(if $(filter-out file,$(origin CXXFLAGS)),$(CXXFLAGS)))
now_libraries := $(strip $(MPI_FLAGS) $(BLAS) $(ONEDNN) $(NCCL))
now_gpu_code  := $(if $(filter cuda,$(DEVICE)),$(NVCC)) $(GPU_CODE)
$(foreach folder,$(OBJECTS) $(TOOLS),$(addprefix $(folder)/,settings libraries gpu_code)): FORCE
	@mkdir -p $(@D)
	@echo '$(now_$(@F))' | cmp -s - $@ || echo '$(now_$(@F))' > $@
FORCE:
$(addprefix $(OBJECTS)/,train_gpt.o start_and_plan.o run_and_inference.o compute.o test_gpt.o nccl.o \
	comm_nccl.o comm_mpi.o comm_single.o): $(OBJECTS)/settings
$(addprefix $(TOOLS)/,tokenize.o tasks.o convert.o corpus.o fuzz_corpus.o comm_mpi.o \
	comm_single.o): $(TOOLS)/settings
$(addprefix $(OBJECTS)/,comm_nccl.o comm_mpi.o comm_single.o): $(OBJECTS)/libraries
$(addprefix $(TOOLS)/,comm_mpi.o comm_single.o): $(TOOLS)/libraries
$(addprefix $(OBJECTS)/,compute.o test_gpt.o): $(OBJECTS)/gpu_code

$(OBJECTS)/train_gpt.o: train_gpt.cu Makefile
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
# What surrounds a step, of which the trainer and the checks see declarations only: in two compilations, as
# the headers that two share are more work than they are; -O1, as layers are computed in compute.o
APPENDICES := $(OBJECTS)/start_and_plan.o $(OBJECTS)/run_and_inference.o
$(OBJECTS)/start_and_plan.o: PARTS := layers/start/start.cpp layers/plan/observe.cpp
$(OBJECTS)/run_and_inference.o: PARTS := layers/run/trainer.cpp layers/inference/evaluate.cpp
$(APPENDICES): Makefile
	@mkdir -p $(@D)
	printf '#include "%s"\n' $(PARTS) | \
	  $(COMPILE:-O2=-O1) -I. -MMD -MP -MF $(@:.o=.d) -MT $@ -c - -o $@
# what has kernels: operations, and the checks, which launch them one by one
$(OBJECTS)/compute.o: layers/compute.cu Makefile
	@mkdir -p $(@D)
	$(KERNELS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(OBJECTS)/test_gpt.o: test_gpt.cu Makefile
	@mkdir -p $(@D)
	$(KERNELS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
vpath %.cpp data data/tasks layers/convert
$(TOOLS)/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(HOST) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

vpath comm_%.cpp comm comm/mpi
$(OBJECTS)/comm_%.o: comm_%.cpp Makefile
	@mkdir -p $(@D)
	$(COMPILE) $(NCCL_COMPILE) $(MPI_COMPILE) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(OBJECTS)/nccl.o $(OBJECTS)/test_nccl.o: $(OBJECTS)/%.o: layers/emulator/nccl/%.cpp Makefile
	@mkdir -p $(@D)
	$(COMPILE) $(NCCL_COMPILE) $(MPI_COMPILE) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(OBJECTS)/bf16_%.o: layers/fast/bf16_%.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(HOST) $(filter -I%,$(ONEDNN)) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(OBJECTS)/watch.o $(OBJECTS)/watch_hooks.o: $(OBJECTS)/%.o: layers/emulator/%.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(HOST) -O3 -DWATCHED -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# what only checks run compiles the trainer once: there train_gpt is test_gpt, called by another name
FOR_CHECKS := $(or $(SANITIZE),$(filter emulated fp64,$(DEVICE) $(PRECISION)))
ifneq ($(FOR_CHECKS),)
$(OBJECTS)/test_gpt.o: KERNELS += -DAND_TRAIN_GPT
$(BUILD)/train_gpt: $(BUILD)/test_gpt
	ln -f $< $@
else
$(BUILD)/train_gpt: $(OBJECTS)/compute.o
endif
APART := $(if $(FOR_CHECKS),,$(APPENDICES))
$(addprefix $(BUILD)/,$(if $(FOR_CHECKS),,train_gpt) test_gpt): $(BUILD)/%: $(OBJECTS)/%.o \
	$(APART) $(OBJECTS)/comm_$(COMM).o $(NCCL_OBJECT) \
	$(BF16_OBJECT) $(if $(WATCHED),$(OBJECTS)/watch.o $(OBJECTS)/watch_hooks.o)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(LIBS) $(BLAS_LIBS) $(NCCL_LINK) $(MPI_LINK)
# two kernels, access by access: of scripts/tour (SANITIZE=thread)
$(OBJECTS)/tour_kernels.o: scripts/tour/kernels.cu Makefile
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/tour_kernels: $(OBJECTS)/tour_kernels.o $(OBJECTS)/watch.o $(OBJECTS)/watch_hooks.o \
	$(BF16_OBJECT)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(BLAS_LIBS)
$(BUILD)/test_nccl: $(OBJECTS)/test_nccl.o $(NCCL_OBJECT)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(MPI_LINK)
$(TOOLS)/%.o: LEVEL := $(FAST)
$(BUILD)/tokenize $(BUILD)/tasks: $(BUILD)/%: $(TOOLS)/%.o
	@mkdir -p $(@D)
	$(CXX) $(HOST) $< -o $@
$(TOOLS)/comm_%.o: comm_%.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(HOST) $(if $(filter mpi,$*),$(MPI_COMPILE)) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/convert: $(TOOLS)/convert.o $(TOOLS)/comm_single.o
	@mkdir -p $(@D)
	$(CXX) $(HOST) $^ -o $@ $(BLAS)

# ---- the corpus: its libraries are only for it (scripts/install.sh --with-corpus) --------------------------
CORPUS_FLAGS   := -I/usr/include/libxml2
CORPUS_LIBS    := -lxml2 -Wl,--push-state,--no-as-needed -lcld2_full -Wl,--pop-state -lcld2 -lfasttext \
	-lbrotlidec -luchardet -lutf8proc -lsimdjson -lxxhash -lzstd -lz -lcrypto
CORPUS_HEADERS := cstdio libxml/HTMLparser.h cld2/public/compact_lang_det.h fasttext/fasttext.h \
	brotli/decode.h uchardet/uchardet.h utf8proc.h simdjson.h xxhash.h zstd.h zlib.h openssl/evp.h
CORPUS_COMM    := $(if $(filter single,$(COMM)),single,mpi)
corpus-found:
	@printf '#include <%s>\n' $(CORPUS_HEADERS) | $(CXX) -std=c++20 $(CORPUS_FLAGS) -w -fsyntax-only -x c++ - \
	  2>/dev/null || \
	  { echo "./corpus needs libraries that are not installed: run scripts/install.sh --with-corpus"; exit 1; }
corpus: corpus-found $(BUILD)/corpus
	ln -f $(BUILD)/corpus $@
$(TOOLS)/corpus.o $(TOOLS)/fuzz_corpus.o: $(TOOLS)/%.o: data/corpus/%.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(HOST) $(CORPUS_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/corpus $(BUILD)/fuzz_corpus: $(BUILD)/%: $(TOOLS)/%.o $(TOOLS)/comm_$(CORPUS_COMM).o
	@mkdir -p $(@D)
	$(CXX) $(HOST) $^ -o $@ $(CORPUS_LIBS) $(BLAS) $(MPI_LINK)

test:
	bash scripts/test.sh
bench: all
	./test_gpt bench
ifneq ($(filter cpu-fp32 cpu-bf16,$(DEVICE)-$(PRECISION)),)
	python3 scripts/bench_cpu.py $(BUILD)
endif
profile: all
	./test_gpt profile $(OPTIONS)
bench-evaluate: all
	./test_gpt bench-evaluate
bench-parallel:
	bash scripts/bench_parallel.sh
bench-corpus:
	bash scripts/bench_corpus.sh
kernel-report: all
	python3 scripts/kernel_report.py $(or $(NVCC),nvcc)
check-kernels:
	python3 scripts/kernel_report.py $(or $(NVCC),nvcc) --check
record-kernels:
	python3 scripts/kernel_report.py $(or $(NVCC),nvcc) --record
check:
	python3 scripts/check.py
	python3 scripts/check_headers.py
clean:
	rm -rf build
	for each in $(PROGRAMS) corpus; do [ -d $$each ] || rm -f $$each; done
