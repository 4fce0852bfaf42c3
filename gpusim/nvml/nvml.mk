# SPDX-License-Identifier: Apache-2.0
# What the simulated NVML adds to the rules of gpusim/Makefile.

$(OUT)/gen/nvml_stubs.h: data/libnvidia-ml-exports.txt
	@mkdir -p $(@D)
	sed 's/.*/STUB(&)/' $< >$@
$(OUT)/obj/nvml/stubs.o: $(OUT)/gen/nvml_stubs.h
