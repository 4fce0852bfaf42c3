// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// completeModules copies the incomplete modules and adds the missing files. completeModules returns
// the path of a go.mod that uses the copies, with a go.sum in the same directory. On an error,
// output is the output of the Go command.
func completeModules(ctx context.Context, source, work string, m Module) (modFile string, output []byte, err error) {
	if err := os.RemoveAll(work); err != nil {
		return "", nil, fmt.Errorf("clear an interrupted build of %s: %w", m.Name, err)
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", nil, fmt.Errorf("complete the modules of %s: %w", m.Name, err)
	}
	modFile = filepath.Join(work, "go.mod")
	sumFile := m.ModFile[:len(m.ModFile)-len(filepath.Ext(m.ModFile))] + ".sum"
	err = errors.Join(copyFile(modFile, filepath.Join(source, m.ModFile)), copyFile(filepath.Join(work, "go.sum"), filepath.Join(source, sumFile)))
	if err != nil {
		return "", nil, err
	}
	for i, c := range m.Completed {
		dir := filepath.Join(work, fmt.Sprint(i))
		if output, err = c.copyTo(ctx, source, dir); err != nil {
			return "", output, err
		}
		edit := exec.CommandContext(ctx, "go", "mod", "edit", "-replace="+c.Module+"="+dir, modFile)
		if output, err = edit.CombinedOutput(); err != nil {
			return "", output, fmt.Errorf("use the copy of %s: %w", c.Module, err)
		}
	}
	return modFile, nil, nil
}

// copyTo copies the module and adds its files.
func (c Completion) copyTo(ctx context.Context, source, dir string) ([]byte, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.Module+"@"+c.Version)
	download.Dir = source
	download.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	output, err := download.Output()
	if err != nil {
		return output, fmt.Errorf("fetch %s: %w", c.Module, err)
	}
	var fetched struct{ Dir string }
	if err := json.Unmarshal(output, &fetched); err != nil {
		return output, fmt.Errorf("fetch %s: %w", c.Module, err)
	}
	if err := os.CopyFS(dir, os.DirFS(fetched.Dir)); err != nil {
		return nil, fmt.Errorf("copy %s: %w", c.Module, err)
	}
	for target, from := range c.Files {
		if err := os.Chmod(filepath.Join(dir, filepath.Dir(target)), 0o755); err != nil {
			return nil, fmt.Errorf("complete %s: %w", c.Module, err)
		}
		if err := copyFile(filepath.Join(dir, target), filepath.Join(source, from)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func copyFile(target, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	if err := os.WriteFile(target, content, 0o644); err != nil {
		return fmt.Errorf("copy a file: %w", err)
	}
	return nil
}
