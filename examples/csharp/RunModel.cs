// Runs an optimized model twice and prints its outputs' shapes and first values, and the time of the second run:
//
//   RunModel MODEL LIBRARY [--cuda]
//
// What a program adds for ortplugin is RegisterCustomOpLibrary. Inputs are float or int64; open dimensions are 1.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using Microsoft.ML.OnnxRuntime;

static class RunModel
{
  static OrtValue MakeInput(NodeMetadata input)
  {
    var shape = input.Dimensions.Select(size => Math.Max(size, 1L)).ToArray();
    var numbers = Enumerable.Range(0, (int)shape.Aggregate(1L, (count, size) => count * size));
    if (input.ElementType == typeof(float))
    {
      var values = numbers.Select(i => 0.5f + i % 64 / 256f).ToArray();
      return OrtValue.CreateTensorValueFromMemory(values, shape);
    }
    if (input.ElementType == typeof(long))
      return OrtValue.CreateTensorValueFromMemory(numbers.Select(_ => 1L).ToArray(), shape);
    throw new NotSupportedException($"this example has no values for an input of {input.ElementType}");
  }

  static string Describe(OrtValue value)
  {
    var info = value.GetTensorTypeAndShape();
    var first = info.ElementDataType == Microsoft.ML.OnnxRuntime.Tensors.TensorElementType.Float
      ? value.GetTensorDataAsSpan<float>().ToArray().Take(8) : new float[0];
    return $"[{string.Join(", ", info.Shape)}]: {string.Join(" ", first)}";
  }

  static int Main(string[] arguments)
  {
    if (arguments.Length < 2)
    {
      Console.Error.WriteLine("usage: RunModel MODEL LIBRARY [--cuda]");
      return 2;
    }
    using (var options = new SessionOptions())
    using (var run = new RunOptions())
    {
      options.RegisterCustomOpLibrary(arguments[1]);  // ORT also unloads it, after the session
      if (arguments.Contains("--cuda")) options.AppendExecutionProvider_CUDA(0);
      using (var session = new InferenceSession(arguments[0], options))
      {
        var inputs = session.InputMetadata.ToDictionary(input => input.Key, input => MakeInput(input.Value));
        session.Run(run, inputs, session.OutputNames).Dispose();  // prepares
        var watch = Stopwatch.StartNew();
        using (var outputs = session.Run(run, inputs, session.OutputNames))
        {
          watch.Stop();
          foreach (var line in session.OutputNames.Zip(outputs, (name, value) => $"{name} {Describe(value)}"))
            Console.WriteLine(line);
        }
        Console.WriteLine($"{watch.Elapsed.TotalMilliseconds:F3} ms");
        foreach (var input in inputs.Values) input.Dispose();
      }
    }
    return 0;
  }
}
