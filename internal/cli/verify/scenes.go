// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"time"
)

// sceneCores is the limit on GPU time of scenes, in percent. The interposer records events only
// under a limit on GPU time.
const sceneCores = 50

// scened is the report of the workload "scenes".
type scened struct {
	WallUS float64 `json:"wall_us"`
	Broken int     `json:"broken"`
}

// scene runs a scene without limits and under limits.
func (v *run) scene(ctx context.Context, s scene) Row {
	limits := hold{memory: v.start.memoryLimit(), cores: sceneCores}
	free := hold{}
	args := append([]string{"scenes", "--scene"}, s.args...)
	if s.two {
		others := v.start.others()
		if len(others) == 0 {
			return skipped("the machine has only one GPU")
		}
		limits.gpus, free.gpus = others[:1], others[:1]
	}
	if s.constructor {
		args = append(args, "--module", v.library(constructorLibrary))
	}
	native := v.play(ctx, free, args)
	if native.err != "" {
		return skipped("without limits: %s", native.err)
	}
	limited := v.play(ctx, limits, args)
	r := row(judgeScene(native, limited, sceneCores))
	r.Why = limited.err
	return r
}

func (v *run) play(ctx context.Context, h hold, args []string) played {
	var s scened
	err := v.run(ctx, 0, h, &s, args...)
	p := played{took: time.Duration(s.WallUS * float64(time.Microsecond)), broken: s.Broken}
	if err != nil {
		p.hangs, p.err = errors.Is(err, errHangs), err.Error()
	}
	return p
}
