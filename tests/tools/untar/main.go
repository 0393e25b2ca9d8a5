// Command untar does with an artifact what a consumer of Flux in Go does: it downloads it to a file, verifies its digest over the
// whole of it, and only then unpacks it into a directory; and it hashes every file. `make bench` measures the fetcher beside it.
//
//	untar URL SHA256 DIRECTORY
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 4 {
		fail(errors.New("usage: untar URL SHA256 DIRECTORY"))
	}
	files, err := untar(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fail(err)
	}
	fmt.Println(files, "files")
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "untar:", err)
	os.Exit(1)
}

func untar(url, digest, dir string) (int, error) {
	archive, err := os.CreateTemp("", "untar")
	if err != nil {
		return 0, err
	}
	defer os.Remove(archive.Name())
	defer archive.Close()
	if err := download(url, digest, archive); err != nil {
		return 0, err
	}
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return unpack(archive, dir)
}

func download(url, digest string, into io.Writer) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(into, hash), response.Body); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != digest {
		return errors.New("the content does not match its digest")
	}
	return nil
}

func unpack(archive io.Reader, dir string) (int, error) {
	inflated, err := gzip.NewReader(archive)
	if err != nil {
		return 0, err
	}
	files := 0
	made := map[string]bool{}
	hash := sha256.New()
	for entries := tar.NewReader(inflated); ; {
		header, err := entries.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return files, err
		}
		if !filepath.IsLocal(header.Name) {
			return files, fmt.Errorf("the path %q leaves the directory", header.Name)
		}
		path := filepath.Join(dir, header.Name)
		switch header.Typeflag {
		case tar.TypeDir:
			if err := os.MkdirAll(path, 0o750); err != nil {
				return files, err
			}
			made[path] = true
		case tar.TypeReg:
			if parent := filepath.Dir(path); !made[parent] {
				if err := os.MkdirAll(parent, 0o750); err != nil {
					return files, err
				}
				made[parent] = true
			}
			hash.Reset()
			if err := write(path, header.FileInfo().Mode().Perm(), io.TeeReader(entries, hash)); err != nil {
				return files, err
			}
			hash.Sum(nil)
			files++
		default:
			return files, fmt.Errorf("%q is neither a file nor a directory", header.Name)
		}
	}
}

func write(path string, mode os.FileMode, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
